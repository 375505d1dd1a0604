// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/detail/json_reader.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <unordered_set>

namespace trireme::graph::detail {
namespace {

using Json = nlohmann::json;

// A graph has seven levels. Deeper documents are refused, since they are destroyed recursively.
constexpr int kDeepest = 16;

// Returns the line and column of an offset, such as `3:17`.
std::string place_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line
  return join_message(std::ranges::count(before, '\n') + 1, ":", before.size() - line_begin + 1);
}

// Refuses documents that the parser itself would accept: duplicate keys and deep nesting.
class Watch {
 public:
  explicit Watch(std::string_view source) : source_(source) {}

  void notice(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) {
      notice_key(depth, parsed.get_ref<const std::string&>());
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event != Event::array_end && depth == 2) {
      ++index_;
    }
    if (event != Event::object_start && event != Event::array_start) return;
    if (depth > kDeepest) {
      fail(join_message("there are lists and objects in each other, more than ", kDeepest));
    }
    if (event == Event::object_start) keys_.emplace_back();
  }

 private:
  void notice_key(int depth, const std::string& key) {
    if (depth == 1) {
      key_ = key;
      index_ = -1;
    }
    if (!keys_.back().insert(key).second) fail(join_message("'", key, "' is there twice"));
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string place = index_ < 0 ? key_ : join_message(key_, "[", index_, "]");
    throw DataError(join_message(source_, ": ", place, place.empty() ? "" : ": ", what),
                    kDamagedHint);
  }

  std::string_view source_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are being read
  std::string key_;                                    // the current key of the document
  std::ptrdiff_t index_ = -1;                          // the current element of its list
};

Json parsed(std::string_view text, std::string_view source) {
  Watch watch(source);
  try {
    return Json::parse(text, [&watch](int depth, Json::parse_event_t event, const Json& parsed) {
      watch.notice(depth, event, parsed);
      return true;
    });
  } catch (const Json::parse_error& error) {
    const std::size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    throw DataError(
        join_message(source, ":", place_of(text, offset),
                     offset >= text.size() ? ": the text ends too early" : ": this is no JSON"),
        kDamagedHint);
  } catch (const Json::exception& error) {  // a number out of range
    throw DataError(join_message(source, ": this is no JSON: ", error.what()), kDamagedHint);
  }
}

std::string beginning_of(const Json& json) {
  if (json.is_array()) return "a list";
  if (json.is_object()) return "an object";
  constexpr std::size_t kMost = 60;
  const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

template <typename Type>
Type parse_json(std::string_view text, std::string_view source) {
  return parsed(text, source);
}

template <typename Type>
std::string shown(const Type& json) {
  return beginning_of(json);
}

template Json parse_json(std::string_view text, std::string_view source);
template std::string shown(const Json& json);

}  // namespace trireme::graph::detail

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

// Refuses documents that the parser itself would accept: duplicate keys and deep nesting. Reads the
// document once before the parser does, because a callback of Json::parse takes quadratic time: it
// searches a list of everything before at the end of each object.
class Watch final : public nlohmann::json_sax<Json> {
 public:
  explicit Watch(std::string_view source) : source_(source) {}

  bool key(string_t& name) override {
    notice_key(depth_, name);
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    begin();
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override { return begin(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return notice_value(); }
  bool boolean(bool /*value*/) override { return notice_value(); }
  bool number_integer(number_integer_t /*value*/) override { return notice_value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return notice_value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return notice_value();
  }
  bool string(string_t& /*value*/) override { return notice_value(); }
  bool binary(binary_t& /*value*/) override { return notice_value(); }
  bool parse_error(std::size_t /*place*/, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    return false;  // the parser reports it
  }

 private:
  bool notice_value() {
    if (depth_ == 2) ++index_;
    return true;
  }

  bool begin() {
    notice_value();
    if (depth_ > kDeepest) {
      fail(join_message("there are lists and objects in each other, more than ", kDeepest));
    }
    ++depth_;
    return true;
  }

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
  int depth_ = 0;                                      // the number of open objects and lists
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are being read
  std::string key_;                                    // the current key of the document
  std::ptrdiff_t index_ = -1;                          // the current element of its list
};

Json parsed(std::string_view text, std::string_view source) {
  Watch watch(source);
  try {
    Json::sax_parse(text, &watch);
    return Json::parse(text);
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

// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/value.h>

#include <trireme/base/config/toml.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <tuple>

namespace trireme::config {
namespace {

constexpr std::size_t kLongestShown = 60;
constexpr std::size_t kMostProblems = 20;

// Returns the value of a key, and creates a table for it if there is none.
Value& entry_of(Value::Table& table, std::string_view key, const Origin& origin) {
  const auto found = std::ranges::find(table, key, &Entry::key);
  if (found != table.end()) return found->value;
  table.push_back({.key = std::string(key), .origin = origin, .value = {}});
  table.back().value.data = Value::Table{};
  return table.back().value;
}

// Returns the element at an index; the index after the last one appends an element. Returns nullptr
// for any other index.
Value* element_of(Value::List& list, const std::string& index) {
  const auto number = parse_number<std::size_t>(index);
  if (!number || *number > list.size()) return nullptr;
  if (*number == list.size()) list.push_back({.data = Value::Table{}});
  return &list[*number];
}

void set_origin(Value& value, const Origin& origin) {
  value.origin = origin;
  if (auto* const list = std::get_if<Value::List>(&value.data)) {
    for (Value& element : *list) set_origin(element, origin);
  } else if (auto* const table = std::get_if<Value::Table>(&value.data)) {
    for (Entry& entry : *table) {
      entry.origin = origin;
      set_origin(entry.value, origin);
    }
  }
}

}  // namespace

std::string to_string(const Origin& origin) {
  switch (origin.kind) {
    case Origin::Kind::kDefault:
      return "default";
    case Origin::Kind::kProgram:
      return "set by the program";
    case Origin::Kind::kFile:
      return join_message(origin.file, ":", origin.line, ":", origin.column);
    case Origin::Kind::kCommandLine:
      return origin.argument;
  }
  return "unknown";
}

std::optional<std::string> Value::text() const {
  const auto* const parsed = get<std::string>();
  // A typed text that is not quoted is taken as it is, even if it also parses as a number.
  if (!typed) return parsed != nullptr ? std::optional(*parsed) : std::nullopt;
  const bool is_quoted = typed->starts_with('"') || typed->starts_with('\'');
  return is_quoted && parsed != nullptr ? *parsed : *typed;
}

std::string last_part(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? key : key.substr(dot + 1));
}

std::string table_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? "" : key.substr(0, dot));
}

Value typed_value(const std::string& text, const Origin& origin) {
  Value value;
  if (auto parsed = parse_toml_value(text)) {
    value.data = std::move(parsed->data);
  } else {
    value.data = text;
  }
  set_origin(value, origin);
  value.typed = text;
  return value;
}

std::string shown(const Value& value) {
  std::string text = toml_text(value);
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "...";
  return text;
}

bool set_below(Value& tree, std::string_view path, const Value& value) {
  Value* place = &tree;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view key = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (auto* const table = std::get_if<Value::Table>(&place->data)) {
      place = &entry_of(*table, key, value.origin);
    } else if (auto* const list = std::get_if<Value::List>(&place->data)) {
      place = element_of(*list, std::string(key));
      if (place == nullptr) return false;
    } else {
      return false;
    }
  }
  *place = value;
  return true;
}

void throw_if_any(Problems problems) {
  if (problems.empty()) return;
  std::ranges::stable_sort(problems, {}, [](const Problem& problem) {
    return std::tuple(problem.origin.line, problem.origin.column);
  });
  if (problems.size() == 1) throw ConfigError(problems[0].message, problems[0].hint);
  std::string message = join_message(problems.size(), " settings are wrong:");
  for (std::size_t index = 0; index < std::min(problems.size(), kMostProblems); ++index) {
    message += "\n  " + problems[index].message;
    if (!problems[index].hint.empty()) message += " (" + problems[index].hint + ")";
  }
  if (problems.size() > kMostProblems) message += "\n  ...";
  throw ConfigError(message, "nothing of this source was taken; correct these first");
}

}  // namespace trireme::config

// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/toml.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

// In builds with assertions, toml++ asserts conditions that it would report as a parse error right
// afterwards. A file that contains `[[[` would then abort the process.
#define TOML_ASSERT(condition) static_cast<void>(0)  // NOLINT(readability-identifier-naming)
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::config {
namespace {

// Limits far above what any configuration needs. Deeper nesting is refused because values are
// built, written and destroyed recursively.
constexpr std::int64_t kMaximumKeyParts = 64;
constexpr int kMaximumDepth = 256;

// Returns the position after the last character of the quoted text or comment that begins at
// `begin`.
std::size_t end_of_quoted(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  if (quote == '#') return std::min(text.find('\n', begin), text.size());
  const std::string three(3, quote);
  const bool is_multi_line = text.substr(begin).starts_with(three);
  for (std::size_t at = begin + (is_multi_line ? 3 : 1); at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_multi_line ? text.substr(at).starts_with(three) : text[at] == quote) {
      return at + (is_multi_line ? 3 : 1);
    } else if (text[at] == '\n' && !is_multi_line) {
      return at;  // never closed; the parser reports that
    }
  }
  return text.size();
}

// Throws ConfigError if a dotted key has too many parts. toml++ creates one nested table for each
// part and has no limit of its own.
void check_dotted_keys(std::string_view text, const std::string& file) {
  std::int64_t line = 1;
  std::int64_t dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char character = text[at];
    if (character == '"' || character == '\'' || character == '#') {
      const std::size_t end = end_of_quoted(text, at);
      line += std::ranges::count(text.substr(at, end - at), '\n');
      at = end;
      continue;
    }
    ++at;
    if (character == '\n') ++line;
    if (character == '.') {
      if (++dots < kMaximumKeyParts) continue;
      const Origin origin{.kind = Origin::Kind::kFile, .file = file, .line = line, .column = 1};
      throw ConfigError(join_message(to_string(origin), ": a dotted key has more than ",
                                     kMaximumKeyParts, " parts"),
                        "this is no configuration file, or a damaged one");
    }
    if (std::string_view("=,[]{}\n").find(character) != std::string_view::npos) dots = 0;
  }
}

Origin origin_of(const toml::source_region& region, const std::string& file) {
  return {.kind = Origin::Kind::kFile,
          .file = file,
          .line = static_cast<std::int64_t>(region.begin.line),
          .column = static_cast<std::int64_t>(region.begin.column)};
}

template <typename Date>
Value::Date date_of(const Date& date) {
  TextWriter text;
  text << date;
  return {text.str()};
}

Value value_of(const toml::node& node, const std::string& file, int depth);

Value::Table table_of(const toml::table& table, const std::string& file, int depth = 0) {
  Value::Table entries;
  for (const auto& [key, node] : table) {
    entries.push_back({.key = std::string(key.str()),
                       .origin = origin_of(key.source(), file),
                       .value = value_of(node, file, depth + 1)});
  }
  // toml++ sorts entries by name; restore the order of the file.
  std::ranges::stable_sort(entries, {}, [](const Entry& entry) {
    return std::pair(entry.origin.line, entry.origin.column);
  });
  return entries;
}

Value value_of(const toml::node& node, const std::string& file, int depth) {
  Value value{.origin = origin_of(node.source(), file)};
  if (depth > kMaximumDepth) {
    throw ConfigError(join_message(to_string(value.origin), ": nested in more than ", kMaximumDepth,
                                   " tables and lists"),
                      "this is no configuration file, or a damaged one");
  }
  if (const auto* table = node.as_table()) {
    value.data = table_of(*table, file, depth);
  } else if (const auto* array = node.as_array()) {
    Value::List list;
    for (const toml::node& element : *array) list.push_back(value_of(element, file, depth + 1));
    value.data = std::move(list);
  } else if (const auto* text = node.as_string()) {
    value.data = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.data = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.data = number->get();
  } else if (const auto* flag = node.as_boolean()) {
    value.data = flag->get();
  } else if (const auto* date = node.as_date()) {
    value.data = date_of(date->get());
  } else if (const auto* time = node.as_time()) {
    value.data = date_of(time->get());
  } else if (const auto* date_time = node.as_date_time()) {
    value.data = date_of(date_time->get());
  }
  return value;
}

std::string quoted(const std::string& text) {
  const toml::value<std::string> value(text);
  TextWriter out;
  out << toml::toml_formatter(value, toml::format_flags::allow_unicode_strings);
  return out.str();
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  std::string text = shortest_text(number);
  if (text.find_first_of(".einf") == std::string::npos) text += ".0";
  return text;
}

bool is_bare(const std::string& key) {
  const auto fits = [](char letter) {
    return is_ascii_alphanumeric(letter) || letter == '_' || letter == '-';
  };
  return !key.empty() && std::all_of(key.begin(), key.end(), fits);
}

// Returns each kind of value as TOML.
struct Writer {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(std::int64_t integer) const { return std::to_string(integer); }
  std::string operator()(double number) const { return number_text(number); }
  std::string operator()(const std::string& text) const { return quoted(text); }
  std::string operator()(const Value::Date& date) const { return date.text; }
  std::string operator()(const Value::List& list) const {
    std::string text = "[";
    for (const Value& element : list) text += (text.size() > 1 ? ", " : "") + toml_text(element);
    return text + "]";
  }
  std::string operator()(const Value::Table& table) const {
    std::string text;
    for (const auto& [key, origin, value] : table) {
      text += (text.empty() ? " " : ", ") + (is_bare(key) ? key : quoted(key)) + " = " +
              toml_text(value);
    }
    return text.empty() ? "{}" : "{" + text + " }";
  }
};

}  // namespace

Value parse_toml(std::string_view text, const std::string& file) {
  check_dotted_keys(text, file);
  try {
    const toml::table table = toml::parse(text, std::string_view(file));
    return {.data = table_of(table, file),
            .origin = {.kind = Origin::Kind::kFile, .file = file, .line = 1, .column = 1}};
  } catch (const toml::parse_error& error) {
    throw ConfigError(join_message(to_string(origin_of(error.source(), file)),
                                   ": not TOML: ", error.description()),
                      "a line is `key = value` or `[table]`, and texts stand in quotes");
  }
}

std::optional<Value> parse_toml_value(std::string_view text) {
  check_dotted_keys(text, "");
  try {
    const toml::table table = toml::parse("value = " + std::string(text));
    const toml::node* const node = table.get("value");
    if (node == nullptr || table.size() != 1) return std::nullopt;
    return value_of(*node, "", 0);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

std::string toml_text(const Value& value) { return std::visit(Writer{}, value.data); }

}  // namespace trireme::config

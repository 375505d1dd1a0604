// SPDX-License-Identifier: Apache-2.0
// Untyped values from a configuration file or the command line, with the place where each was
// written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::config {

/// The source of a value.
struct Origin {
  /// The kinds of sources: the default, the program's code, a file, or the command line.
  enum class Kind { kDefault, kProgram, kFile, kCommandLine };

  /// The kind of source.
  Kind kind = Kind::kDefault;
  /// The file, for kFile; lines and columns count from 1.
  std::string file{};
  std::int64_t line = 0;    ///< the line, from 1
  std::int64_t column = 0;  ///< the column, from 1
  /// The argument, for kCommandLine, such as `--set a.b=3`.
  std::string argument{};
};

/// Returns the origin for messages: `default`, `set by the program`, `train.toml:3:17`, or the
/// argument itself.
std::string to_string(const Origin& origin);

/// A key with its value.
template <typename T>
struct Named {
  /// The key.
  std::string key;
  /// The place of the key, not of the value.
  Origin origin{};
  /// The value.
  T value{};
};

/// A TOML value. Tables keep the order in which their entries were written or described.
struct Value {
  /// A list of values.
  using List = std::vector<Value>;
  /// A table: keys with their values, in order.
  using Table = std::vector<Named<Value>>;
  /// A date or a time. No setting accepts one.
  struct Date {
    std::string text;  ///< the date or time as it was written
  };

  /// The value itself, of any type that TOML has.
  std::variant<bool, std::int64_t, double, std::string, Date, List, Table> data{false};
  Origin origin{};
  /// The text as it was typed, for values from the command line. A setting of text type takes this
  /// text without interpretation: `--set name=1e3` needs no quotes.
  std::optional<std::string> typed{};

  /// Returns the value as type T, or nullptr if it has another type.
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data);
  }

  /// Returns the text if the value is one, either quoted or typed on the command line.
  std::optional<std::string> text() const;
};

/// An entry of a table.
using Entry = Named<Value>;

/// Returns the part of a key after the last dot: `zero_level` for `plan.zero_level`.
std::string last_part(std::string_view key);

/// Returns the part of a key before the last dot: `plan` for `plan.zero_level`, and an empty text
/// without a dot.
std::string table_of(std::string_view key);

/// Returns the value of a text from the command line: parsed as TOML if possible, otherwise the
/// text itself.
Value typed_value(const std::string& text, const Origin& origin);

/// Returns the value as TOML for an error message, shortened if it is long.
std::string shown(const Value& value);

/// Sets the value at `path` (`key.key.2.key`) below a table or list, and creates tables on the way.
/// An index equal to the length of a list appends an element. Returns false if the path leads
/// through any other value.
bool set_below(Value& tree, std::string_view path, const Value& value);

/// One problem in a configuration.
struct Problem {
  Origin origin;        ///< the place of the problem
  std::string message;  ///< what is wrong
  std::string hint;     ///< what to do; may be empty
};
/// A list of problems.
using Problems = std::vector<Problem>;

/// Throws ConfigError with all problems in the order of the file, unless the list is empty.
void throw_if_any(Problems problems);

}  // namespace trireme::config

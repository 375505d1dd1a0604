// SPDX-License-Identifier: Apache-2.0
// What stands in a configuration file or on the command line, before it has a type of ours, and
// where it stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::config {

/// Where a value came from.
struct Origin {
  enum class Kind { kDefault, kProgram, kFile, kCommandLine };

  Kind kind = Kind::kDefault;
  /// For kFile, lines and columns from 1.
  std::string file{};
  std::int64_t line = 0;
  std::int64_t column = 0;
  /// For kCommandLine, such as `--set a.b=3`.
  std::string argument{};
};

/// Returns `default`, `set by the program`, `train.toml:3:17` or the argument.
std::string to_string(const Origin& origin);

template <typename T>
struct Named {
  std::string key;
  /// Of the key, not of the value.
  Origin origin{};
  T value{};
};

/// A value of TOML, tables in their written or described order.
struct Value {
  using List = std::vector<Value>;
  using Table = std::vector<Named<Value>>;
  /// A date or a time, which no setting is.
  struct Date {
    std::string text;
  };

  std::variant<bool, std::int64_t, double, std::string, Date, List, Table> data{false};
  Origin origin{};
  /// For the command line: the text as it was typed. A setting that is a text takes it as it is,
  /// `--set name=1e3` without quotes.
  std::optional<std::string> typed{};

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data);
  }

  /// Returns the text where this is one, quoted or typed on the command line.
  std::optional<std::string> text() const;
};

using Entry = Named<Value>;

/// Returns `zero_level` of `plan.zero_level`.
std::string last_part(std::string_view key);

/// Returns `plan` of `plan.zero_level`; nothing where there is no dot.
std::string table_of(std::string_view key);

/// Returns the value that `text` means on the command line: TOML where it is, else a text.
Value typed_value(const std::string& text, const Origin& origin);

/// Returns the value for an error message: as TOML, cut where it is long.
std::string shown(const Value& value);

/// Sets what `path` (`key.key.2.key`) names below a table or a list, making tables on the way; a
/// list's own length as an index appends. False where the path leads through something else.
bool set_below(Value& tree, std::string_view path, const Value& value);

/// One thing that is wrong with a configuration.
struct Problem {
  Origin origin;
  std::string message;
  std::string hint;
};
using Problems = std::vector<Problem>;

/// Throws ConfigError with all of them, in the order of the file, where there are any.
void throw_if_any(Problems problems);

}  // namespace trireme::config

// SPDX-License-Identifier: Apache-2.0
// Converts TOML 1.0 text to values and back, using toml++.
#pragma once

#include <trireme/base/config/value.h>

#include <optional>
#include <string>
#include <string_view>

namespace trireme::config {

/// Returns the content of a TOML text as a table. Throws ConfigError with `file`, line, column and
/// cause if the text is not TOML.
Value parse_toml(std::string_view text, const std::string& file);

/// Returns the single value that `text` contains, such as `[1, 2]`, or std::nullopt if it is not
/// TOML.
std::optional<Value> parse_toml_value(std::string_view text);

/// Returns the value on one line. Numbers have the shortest digits that read back as the same
/// number, and tables are inline.
std::string toml_text(const Value& value);

}  // namespace trireme::config

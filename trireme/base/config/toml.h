// SPDX-License-Identifier: Apache-2.0
// TOML 1.0 text to values and back, by toml++.
#pragma once

#include <trireme/base/config/value.h>

#include <optional>
#include <string>
#include <string_view>

namespace trireme::config {

/// Returns the table that `text` is. Throws ConfigError with `file`, line, column and cause where
/// it is not TOML.
Value parse_toml(std::string_view text, const std::string& file);

/// Returns the value that stands alone in `text`, such as `[1, 2]`; nothing where it is not TOML.
std::optional<Value> parse_toml_value(std::string_view text);

/// Returns the value on one line: numbers with the fewest digits that read back as the same, tables
/// inline.
std::string toml_text(const Value& value);

}  // namespace trireme::config

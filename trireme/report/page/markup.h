// SPDX-License-Identifier: Apache-2.0
// Converts texts of a run to HTML so that their content always remains text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

/// Escapes `text` for element content and quoted attributes. `<`, `>`, `&` and quotes become
/// entities. Invalid UTF-8, control characters other than tab and line feed, U+FFFE and U+FFFF
/// become U+FFFD.
std::string escaped(std::string_view text);

/// Returns JSON for a script element. It contains no `<`, so that it cannot end the element.
std::string script_safe(std::string json);

/// Returns a text as a JSON string with quotes.
std::string json_text(std::string_view text);

/// Returns bytes in Base64 with padding (RFC 4648, section 4).
std::string base64(std::string_view bytes);

/// Returns pairs of a name and a value as a table, escaped. Returns an empty text if there are
/// none.
std::string definition_table(const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace trireme::report

// SPDX-License-Identifier: Apache-2.0
// Text of a run as HTML: whatever it holds, it stays text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

/// Returns `text` for element content and quoted attributes: `<`, `>`, `&` and quotes as entities,
/// what is no UTF-8, control characters other than tab and line feed, U+FFFE and U+FFFF as U+FFFD.
std::string escaped(std::string_view text);

/// Returns JSON for a script element: no `<` in it, so that it cannot end the element.
std::string script_safe(std::string json);

/// Returns a JSON string with quotes.
std::string json_text(std::string_view text);

/// Returns rows of two texts, escaped, as a table; nothing where there are none.
std::string definition_table(const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace trireme::report

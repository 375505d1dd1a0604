// SPDX-License-Identifier: Apache-2.0
// Names of values in tables and pictures.
#pragma once

#include <trireme/base/text.h>
#include <trireme/graph/graph.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::graph::detail {

/// Returns text such as `Float [2, 3]`.
std::string shape_of(const Value& value);

/// Returns the name of a value for use beside its shape: `fc.weight`, `input 0`, `%12` for the
/// result that is value 12, and `nothing` for kNoValue.
std::string short_name(const Graph& graph, ValueId id);

using trireme::printable;

/// Returns the number of characters of a UTF-8 text.
std::size_t letters_in(std::string_view text);

/// Returns the text if it has at most `letters` characters, otherwise `…` and its end. The end of a
/// path says more than its beginning.
std::string shortened(std::string_view text, std::size_t letters);

/// Joins its arguments as join_message does, but independently of the program's locale. Other
/// programs read the result, so it must not contain thousands separators.
template <typename... Parts>
std::string plain_text(const Parts&... parts) {
  TextWriter text;
  (text << ... << parts);
  return text.str();
}

}  // namespace trireme::graph::detail

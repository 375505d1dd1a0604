// SPDX-License-Identifier: Apache-2.0
// What tables and pictures call things.
#pragma once

#include <trireme/base/text.h>
#include <trireme/graph/graph.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::graph::detail {

/// `Float [2, 3]`.
std::string shape_of(const Value& value);

/// What a value is called where its shape stands beside it: `fc.weight`, `input 0`, `%12` for the
/// result that is value 12, `nothing` for kNoValue.
std::string short_name(const Graph& graph, ValueId id);

using trireme::printable;

/// How many letters a text has; one of UTF-8 counts once.
std::size_t letters_in(std::string_view text);

/// The text itself where it has at most `letters`, else `…` and its end, which of paths says more
/// than the beginning.
std::string shortened(std::string_view text, std::size_t letters);

/// Joins its arguments as join_message does, but whatever the program's locale is: no thousands are
/// set apart in what other programs are to read.
template <typename... Parts>
std::string plain_text(const Parts&... parts) {
  TextWriter text;
  (text << ... << parts);
  return text.str();
}

}  // namespace trireme::graph::detail

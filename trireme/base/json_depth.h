// SPDX-License-Identifier: Apache-2.0
// Measures the nesting depth of a JSON text (RFC 8259) before anything parses it. Code that copies,
// compares or prints JSON values is recursive, and a text of one megabyte can contain a million
// nested lists.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme {

/// The largest nesting depth that Trireme accepts. No file of Trireme's own is deeper, and
/// recursion to this depth fits on every stack.
inline constexpr std::size_t kDeepestJson = 64;

/// Returns the maximum nesting depth of lists and objects: 0 for a number, 2 for `[[1]]`. Takes one
/// pass and allocates nothing. For a text that is not JSON, the result is at least the depth of
/// every part that a parser could accept.
std::size_t json_depth(std::string_view text);

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// How deep a JSON text (RFC 8259) goes, before anything reads it: what copies, compares or prints
// values does so by recursion, and a text of a megabyte can have a million lists in each other.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme {

/// More than any file that Trireme reads, few enough for recursion on every stack.
inline constexpr std::size_t kDeepestJson = 64;

/// Returns how many lists and objects lie in each other at most: 0 for a number, 2 for `[[1]]`.
/// Takes one pass and no memory. A text that is not JSON has some depth too, never less than that
/// of any part of it that a parser could still take.
std::size_t json_depth(std::string_view text);

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Composite operators that keep a kernel of their own on distributed tensors instead of being taken
// apart above it.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace trireme::tensor {

/// Two reasons. Bodies of `*_backward` and one_hot make a plain tensor from options() and write
/// distributed values into it, which would lose the layout. linear and matmul would fold their
/// leading dims into one, which cannot be done to a tensor that is cut along the second; whole,
/// they are one dispatch instead of several, and autograd has formulas for them.
inline bool is_kept_whole(std::string_view name) {
  constexpr std::array<std::string_view, 3> kByName = {"aten::one_hot", "aten::linear",
                                                       "aten::matmul"};
  return std::ranges::find(kByName, name) != kByName.end() ||
         (name.ends_with("_backward") && name != "aten::_backward");
}

}  // namespace trireme::tensor

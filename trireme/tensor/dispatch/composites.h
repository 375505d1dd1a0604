// SPDX-License-Identifier: Apache-2.0
// The composite operators that have a kernel of their own for distributed tensors. LibTorch
// decomposes all other composite operators before they reach the kernel.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace trireme::tensor {

/// Returns true if the composite operator `name` is not decomposed, for one of two reasons:
///   - The bodies of `*_backward` and one_hot make a plain tensor from options() and write
///     distributed values into it, which would lose the layout.
///   - linear and matmul fold their leading dims into one, which is not possible where the second
///     of them is sharded. Kept whole, they are also one dispatch instead of several, and autograd
///     has formulas for them.
inline bool is_kept_whole(std::string_view name) {
  constexpr std::array<std::string_view, 3> kByName = {"aten::one_hot", "aten::linear",
                                                       "aten::matmul"};
  return std::ranges::find(kByName, name) != kByName.end() ||
         (name.ends_with("_backward") && name != "aten::_backward");
}

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
// The dims that a reduction names with its arguments `dim` and `keepdim`, and the shape of its
// result.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// The dims that a call reduces, and the positions of the others in the result.
struct Reduced {
  std::vector<std::int64_t> dims;
  bool keeps_dims = false;  ///< the result has the reduced dims, with one element each

  bool has(std::int64_t dim) const;
  /// Returns the position in the result of a dim that is not reduced.
  int place(std::int64_t dim) const;
  /// Returns the sizes of the result for an input of `sizes`.
  std::vector<std::int64_t> sizes_of(c10::IntArrayRef sizes) const;
};

/// Returns the dims that the arguments `dim` and `keepdim` say. Without `dim`, the call reduces all
/// dims of its first input.
Reduced reduced_by(const Call& call);

/// Returns the sizes of a call's first input without the reduced dims.
std::vector<std::int64_t> reduced_sizes(const Call& call);

}  // namespace trireme::tensor

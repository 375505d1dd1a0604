// SPDX-License-Identifier: Apache-2.0
// What several families say about sizes.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <utility>
#include <vector>

namespace trireme::tensor {

/// Sizes as the value of an argument.
c10::IValue as_list(c10::IntArrayRef sizes);

/// Strides of a tensor of `sizes` without gaps, dims nested in the order that `strides` have.
c10::SmallVector<std::int64_t, 5> dense_strides(c10::IntArrayRef strides, c10::IntArrayRef sizes);

/// Strides of a part of `global` that has `sizes`: dims nested in the same order, without gaps.
c10::SmallVector<std::int64_t, 5> local_strides(const at::Tensor& global, c10::IntArrayRef sizes);

/// The dims of a `dim` argument as non-negative numbers; all of them where it is none or empty.
std::vector<std::int64_t> dims_of(const c10::IValue& argument, std::int64_t num_dims);

inline std::int64_t wrapped_dim(std::int64_t dim, std::int64_t num_dims) {
  return dim < 0 ? dim + std::max<std::int64_t>(num_dims, 1) : dim;
}

/// A tensor of the values that change nothing under `op`: 0 for a sum, 1 for a product, the lowest
/// value for a maximum. For kAverage, zeros.
at::Tensor neutral_values(c10::IntArrayRef sizes, const at::TensorOptions& options, PartialOp op);

/// A strategy with one placement for every input and one for all outputs.
Strategy alike(const Call& call, Placement inputs, Placement outputs);

}  // namespace trireme::tensor

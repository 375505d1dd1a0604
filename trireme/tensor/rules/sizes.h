// SPDX-License-Identifier: Apache-2.0
// Sizes, strides and neutral values that several families of rules need.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// Returns sizes as the value of an argument.
c10::IValue as_list(c10::IntArrayRef sizes);

/// Returns the strides of a tensor of `sizes` without gaps whose dims are nested in the order of
/// `strides`.
c10::SmallVector<std::int64_t, 5> dense_strides(c10::IntArrayRef strides, c10::IntArrayRef sizes);

/// Returns the strides of a part of `global` that has `sizes`, without gaps, with dims nested in
/// the same order.
c10::SmallVector<std::int64_t, 5> local_strides(const at::Tensor& global, c10::IntArrayRef sizes);

/// Returns the dims of a `dim` argument as non-negative numbers; all dims if it is None or empty.
std::vector<std::int64_t> dims_of(const c10::IValue& argument, std::int64_t num_dims);

/// Returns a dim that may count from the end as a non-negative number.
inline std::int64_t wrapped_dim(std::int64_t dim, std::int64_t num_dims) {
  return dim < 0 ? dim + std::max<std::int64_t>(num_dims, 1) : dim;
}

/// Returns the argument `dim` of a call as a dim of its first input.
std::int64_t dim_of(const Call& call);

/// Return the first or second input of a call, as the shape of its result.
inline std::vector<at::Tensor> like_first(const Call& call) { return {call.input(0)}; }
inline std::vector<at::Tensor> like_second(const Call& call) { return {call.input(1)}; }

/// Returns a tensor of the values that change nothing under `op`: 0 for a sum, 1 for a product, the
/// lowest value for a maximum. For kAverage it returns zeros.
at::Tensor neutral_values(c10::IntArrayRef sizes, const at::TensorOptions& options, PartialOp op);

/// Returns a strategy with one placement for every input and one for all outputs.
Strategy alike(const Call& call, Placement inputs, Placement outputs);

}  // namespace trireme::tensor

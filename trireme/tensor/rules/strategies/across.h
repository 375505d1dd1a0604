// SPDX-License-Identifier: Apache-2.0
// What kernels of several families do across the ranks that cut a tensor, along every axis that
// does, and how their strategies are put together.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/rule.h>

#include <c10/util/SmallVector.h>

#include <string_view>
#include <vector>

namespace trireme::tensor {

using Axes = c10::SmallVector<int, 4>;

/// The axes that cut one of `dims`.
Axes axes_that_cut(const Layout& layout, c10::IntArrayRef dims);

/// `tensor` reduced over all ranks along `axes`, contiguous; in its own memory where it is that.
/// Collective over the groups of these axes, also where it has no elements.
at::Tensor reduced_across(const at::Tensor& tensor, const DeviceMesh& mesh, c10::ArrayRef<int> axes,
                          comm::ReduceOp op = comm::ReduceOp::kSum, std::string_view label = {});

/// The same, for Rule::exchanges: an all-reduce of `elements` along each of the axes, which are of
/// the mesh of the call's inputs.
void add_reductions(const DecidedCall& decided, c10::ArrayRef<int> axes, std::int64_t elements,
                    at::ScalarType type, std::vector<Exchange>& exchanges);

/// A collective over tensors of `bytes`, as trireme::seconds takes them, unless one rank is alone
/// on the axis.
void add_exchange(const DeviceMesh& mesh, int axis, Collective collective, double bytes,
                  std::vector<Exchange>& exchanges);

/// A step of a redistribution, if it is a collective.
void add_step(const RedistributionStep& step, std::vector<Exchange>& exchanges);

/// How many rows along `dims` the part of an input has: the elements of a sum over them.
std::int64_t rows_of_part(const DecidedCall& decided, int input, c10::IntArrayRef dims);

/// What this rank holds of one dim of a tensor of global `sizes`.
Extent own_extent(c10::IntArrayRef sizes, const Layout& layout, std::int64_t dim);

/// The layout of a tensor of one dim that is cut as `dim` of another is.
Layout layout_along(const Layout& layout, std::int64_t dim);

/// The product of the sizes of `dims`.
std::int64_t count_of(c10::IntArrayRef sizes, c10::IntArrayRef dims);

/// Replicate for every input; the outputs are left to be given.
Strategy whole_inputs(const Call& call);

/// Places the tensor that is the argument of that name, if the call has one.
void place(Strategy& strategy, const Call& call, std::string_view argument_name,
           Placement placement);

/// How an input is placed when the result it is broadcast to is cut along `dim`: Replicate where it
/// has not got the dim.
Placement placed_along(const at::Tensor& input, c10::IntArrayRef result_sizes, std::int64_t dim);

/// The type that sums of that type are made in: float for half precision, else itself.
at::ScalarType wide_type(at::ScalarType type);

}  // namespace trireme::tensor

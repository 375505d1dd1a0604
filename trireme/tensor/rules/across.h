// SPDX-License-Identifier: Apache-2.0
// Helpers for strategies and kernels of several families: reductions over the ranks that shard a
// tensor, and the collectives that rules report.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/rule.h>

#include <c10/util/SmallVector.h>

#include <string_view>
#include <vector>

namespace trireme::tensor {

/// Numbers of axes of a mesh.
using Axes = c10::SmallVector<int, 4>;

/// Returns the axes that shard one of `dims`.
Axes axes_that_cut(const Layout& layout, c10::IntArrayRef dims);

/// Returns `tensor` reduced over all ranks along `axes`. The result is contiguous, and has the
/// memory of `tensor` if that is contiguous. Collective over the groups of these axes, also for a
/// tensor without elements.
at::Tensor reduced_across(const at::Tensor& tensor, const DeviceMesh& mesh, c10::ArrayRef<int> axes,
                          comm::ReduceOp op = comm::ReduceOp::kSum, std::string_view label = {});

/// Adds the exchanges of reduced_across: an all-reduce of `elements` along each of `axes`, which
/// are axes of the mesh of the call's inputs.
void add_reductions(const DecidedCall& decided, c10::ArrayRef<int> axes, std::int64_t elements,
                    at::ScalarType type, std::vector<Exchange>& exchanges);

/// Adds `count` of these exchanges for the sums over `dims` of an input: an all-reduce of the rows
/// of its part along each axis that shards one of `dims`.
void add_row_reductions(const DecidedCall& decided, int input, c10::IntArrayRef dims, int count,
                        at::ScalarType type, std::vector<Exchange>& exchanges);

/// Adds a collective over tensors of `bytes`, in the sense of trireme::seconds. Adds nothing if the
/// axis has one rank.
void add_exchange(const DeviceMesh& mesh, int axis, Collective collective, double bytes,
                  std::vector<Exchange>& exchanges);

/// Adds a step of a redistribution if it is a collective.
void add_step(const RedistributionStep& step, std::vector<Exchange>& exchanges);

/// Returns the number of elements that a sum over `dims` of the local part of an input has.
std::int64_t rows_of_part(const DecidedCall& decided, int input, c10::IntArrayRef dims);

/// Returns the range that this rank holds of one dim of a tensor of global `sizes`.
Extent own_extent(c10::IntArrayRef sizes, const Layout& layout, std::int64_t dim);

/// Returns the layout of a tensor of one dim that is sharded as `dim` of another tensor.
Layout layout_along(const Layout& layout, std::int64_t dim);

/// Returns the product of the sizes of `dims`.
std::int64_t count_of(c10::IntArrayRef sizes, c10::IntArrayRef dims);

/// Returns a strategy with Replicate for every input and no outputs, which the caller adds.
Strategy whole_inputs(const Call& call);

/// Sets the placement of the tensor that is the argument of that name, if the call has it.
void place(Strategy& strategy, const Call& call, std::string_view argument_name,
           Placement placement);

/// Returns the placement of an input whose result is sharded along `dim`, where the input is
/// broadcast to the result: Replicate if the input does not have the dim.
Placement placed_along(const at::Tensor& input, c10::IntArrayRef result_sizes, std::int64_t dim);

/// Returns the dim of the features that an operator should begin to shard along this axis, if
/// features and weight are both whole along it: dim 1 where the axis shards sequences
/// (kContextAxis), dim 0 where it shards rows (kExpertAxis). Returns -1 along other axes, and if
/// the dim has fewer elements than there are ranks.
int dim_to_begin(const AxisCall& axis, int features, int weight);

/// Returns the dtype in which values of `type` are summed: float for half precision, else `type`.
at::ScalarType wide_type(at::ScalarType type);

/// Returns a tensor in the dtype in which its values are summed.
at::Tensor widened(const at::Tensor& tensor);

/// Returns the dtype of saved statistics of the first input: if that is of half precision, the
/// dtype of the first of `weight`, `bias` and `running_mean` that is not.
at::ScalarType type_of_statistics(const Call& call);

}  // namespace trireme::tensor

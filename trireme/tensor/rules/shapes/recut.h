// SPDX-License-Identifier: Apache-2.0
// Rules of operators that split a dim into ranges or join ranges, along a dim that is sharded. The
// shards of the result are other ranges than those of the input, and only what lies on another rank
// is sent:
//
//     x            | rank 0       | rank 1       |
//     x.chunk(3)   | 0  | 1  | 0  | 1  | 0  | 1  |
//
// Gathering x would send half of it to every rank and leave the results replicated. Here rank 0
// sends one sixth of x, and the results are sharded as x was.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// Returns a rule of split, split_with_sizes, slice, slice_backward or cat with one more strategy:
/// if one axis alone shards the dim of the argument `dim`, the dim stays sharded. Every range must
/// have at least as many elements as the axis has ranks.
Rule with_recut(Rule rule);

/// Returns this rank's part of each of `count` ranges of `dim` of equal length. `local` is this
/// rank's part of a tensor of `sizes` whose `dim` is sharded by one axis. Every range must have at
/// least as many elements as the axis has ranks. Collective over the axis.
std::vector<at::Tensor> stretches_of(const at::Tensor& local, c10::IntArrayRef sizes,
                                     const Layout& layout, int dim, int count);

/// Returns this rank's part of the tensor of `sizes` from its parts of the ranges; the reverse of
/// stretches_of. Collective over the axis.
at::Tensor joined_stretches(const std::vector<at::Tensor>& parts, c10::IntArrayRef sizes,
                            const Layout& layout, int dim);

/// Adds the collective of stretches_of or joined_stretches on that input to a rule's exchanges, if
/// one axis shards `dim`.
void add_stretch_exchange(const DecidedCall& decided, int input, int dim, int count,
                          std::vector<Exchange>& exchanges);

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
// Operators that take stretches of a dim apart or put them together, along a dim that is cut: the
// parts of the result are other stretches than those of the input, and only what lies on another
// rank is sent.
//
//     x            | rank 0       | rank 1       |
//     x.chunk(3)   | 0  | 1  | 0  | 1  | 0  | 1  |
//
// Gathering x would send half of it and leave every rank with the same; here rank 0 sends one part
// of six, and the results are cut as x was.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// The rule of split, split_with_sizes, slice, slice_backward or cat, with one more strategy: where
/// an axis alone cuts the dim of the argument `dim`, it stays cut. No stretch may be shorter than
/// the axis is long.
Rule with_recut(Rule rule);

/// This rank's part of each of `count` equally long stretches of `dim`, where `local` is its part
/// of the tensor of `sizes`, whose `dim` one axis cuts. No stretch may be shorter than the axis is
/// long. Collective over the axis.
std::vector<at::Tensor> stretches_of(const at::Tensor& local, c10::IntArrayRef sizes,
                                     const Layout& layout, int dim, int count);

/// The reverse: this rank's part of the tensor of `sizes`, from its parts of the stretches.
at::Tensor joined_stretches(const std::vector<at::Tensor>& parts, c10::IntArrayRef sizes,
                            const Layout& layout, int dim);

/// The collective of either, for Rule::exchanges: of that input, where one axis cuts `dim`.
void add_stretch_exchange(const DecidedCall& decided, int input, int dim, int count,
                          std::vector<Exchange>& exchanges);

}  // namespace trireme::tensor

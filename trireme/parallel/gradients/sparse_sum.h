// SPDX-License-Identifier: Apache-2.0
// Sums sparse gradients over ranks, as of embeddings whose tables are too large to send whole.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Adds the sparse COO tensors of all ranks and divides the sum. Returns a coalesced tensor with
/// the same bits on every rank, or an undefined tensor if no rank has one.
///
/// At every index that any rank has, the values have the bits of a dense all-reduce in rank order:
/// each rank's tensor is coalesced, then they are added in rank order. fp16 and bf16 are added and
/// divided in fp32 and rounded once. Where all ranks have -0, the sum is 0.
///
/// Sends the largest number of entries of any rank, times the number of ranks. If the ranks
/// together have nearly every index, a dense sum costs no more. Collective and blocking.
///
/// Throws the same UsageError on every rank if sizes, dtype, device type or the number of sparse
/// dimensions differ between ranks, or if `own` does not have the given sizes, dtype and device.
/// @param own this rank's tensor, which may repeat indices; undefined if it has none.
/// @param sizes the sizes of the dense tensor.
/// @param options its dtype and device.
/// @param group the ranks to sum over.
/// @param divisor the divisor of the sum.
at::Tensor sum_sparse(const at::Tensor& own, at::IntArrayRef sizes,
                      const at::TensorOptions& options, const comm::Group& group,
                      double divisor = 1);

}  // namespace trireme::detail

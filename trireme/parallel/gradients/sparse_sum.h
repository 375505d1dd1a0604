// SPDX-License-Identifier: Apache-2.0
// Sums of sparse gradients over ranks: of embeddings whose tables are too large to send whole.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Adds every rank's sparse COO tensor. The result is coalesced, has the same bits on every rank,
/// and at every index that any rank has those of a dense all-reduce in rank order: a left fold over
/// ranks of each rank's coalesced tensor, in fp32 where the dtype is fp16 or bf16, rounded once; 0
/// where all ranks have -0.
/// Undefined where no rank has one. Sends ranks times the largest number of entries, without a
/// gain over dense sums where the ranks together have about every index.
///
/// Collective and blocking. Throws the same UsageError on every rank where sizes, dtype, device or
/// the number of sparse dimensions differ between ranks, or from what a rank's own tensor has.
/// @param own may be undefined: this rank has none; it may have an index several times.
/// @param sizes of the whole tensor.
/// @param options its dtype and device.
at::Tensor sum_sparse(const at::Tensor& own, at::IntArrayRef sizes,
                      const at::TensorOptions& options, const comm::Group& group);

}  // namespace trireme::detail

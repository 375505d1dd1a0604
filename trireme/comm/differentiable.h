// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd follows, for losses over the rows of all ranks.
//
// Every rank has a loss of its own. backward() computes on each rank the gradient of the sum of all
// ranks' losses: collectives bring back what the losses of other ranks contribute. So every rank
// must call backward(), over the same calls in the same order. DataParallel divides the sum by the
// number of ranks. The result is the gradient that one process computes for the mean of all losses.
// The gradients are differentiable in turn.
//
//     torch::Tensor all = comm::functional::all_gather(encode(own_rows), group);
//     torch::Tensor logits = encode(own_rows).matmul(all.t());  // own rows against all
//     contrastive(logits, first_own_row).backward();            // reaches the other ranks' rows
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::comm::functional {

/// Returns the `input` [n, …] of all ranks in rank order, [size * n, …]. All ranks must have the
/// same n.
/// The gradient of `input` is the reduce-scatter (sum) of the gradients of all ranks. Each rank
/// thus gets the sum of what all losses contribute to its rows.
at::Tensor all_gather(const at::Tensor& input, const Group& group);

/// Returns slice r, [n, …], of the sum or average of the `input` [size * n, …] of all ranks, where
/// r is this rank. The gradient of `input` is the all-gather of the gradients of all ranks, divided
/// by the number of ranks for an average.
at::Tensor reduce_scatter(const at::Tensor& input, const Group& group,
                          ReduceOp op = ReduceOp::kSum);

/// Returns the sum or average of the `input` of all ranks. The gradient of `input` is the
/// all-reduce of the gradients of all ranks, by the same operation. If all ranks compute the same
/// loss from the result, that is `size` times the gradient of one of them for a sum, and once for
/// an average.
at::Tensor all_reduce(const at::Tensor& input, const Group& group, ReduceOp op = ReduceOp::kSum);

/// Returns [size * n, …], where slice r is the slice of the `input` [size * n, …] of rank r that
/// belongs to this rank. The gradient of `input` is the all-to-all of the gradients, which takes
/// each slice back to the rank it came from.
at::Tensor all_to_all(const at::Tensor& input, const Group& group);

/// Sends any number of rows of `input` to each rank: `rows_to[r]` rows to rank r, in rank order.
/// Returns the rows that the ranks have sent to this one, in rank order. The gradient of `input` is
/// the exchange back. Ranks that send no rows take part too. Throws UsageError unless both lists
/// have a number for each rank, those of `rows_to` add up to the rows of `input`, and this rank
/// sends itself as many as it receives.
/// @param rows_from the numbers of rows that this rank receives, which are `rows_to` of the others.
at::Tensor all_to_all(const at::Tensor& input, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group);

}  // namespace trireme::comm::functional

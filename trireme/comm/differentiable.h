// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd follows, for losses over the rows of all ranks.
//
// Every rank has a loss of its own. backward() on all of them gives each tensor the gradient of the
// sum of all ranks' losses: what another rank's loss depends on comes back by a collective. So
// every rank must call backward(), over the same calls in the same order. DataParallel divides the
// sum by the number of ranks; together, that is one process's gradient of the mean of all losses.
// The gradients are differentiable in turn.
//
//     torch::Tensor all = comm::functional::all_gather(encode(own_rows), group);
//     torch::Tensor logits = encode(own_rows).matmul(all.t());  // own rows against all
//     contrastive(logits, first_own_row).backward();            // reaches the other ranks' rows
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

namespace trireme::comm::functional {

/// Returns every rank's `input` [n, …] in rank order, [size * n, …]. All ranks have the same n.
/// Gradient: the reduce-scatter (sum) of all ranks' gradients: each rank gets the sum of what all
/// losses say about its rows.
at::Tensor all_gather(const at::Tensor& input, const Group& group);

/// Returns the sum or average of all ranks' `input` [size * n, …], of which rank r has slice r,
/// [n, …]. Gradient: the all-gather of all ranks' gradients, divided by the size for an average.
at::Tensor reduce_scatter(const at::Tensor& input, const Group& group,
                          ReduceOp op = ReduceOp::kSum);

/// Returns the sum or average of all ranks' `input`. Gradient: the all-reduce of all ranks'
/// gradients by the same operation; where all ranks have the same loss of the result, that is
/// `size` times, or for an average once, the gradient of one of them.
at::Tensor all_reduce(const at::Tensor& input, const Group& group, ReduceOp op = ReduceOp::kSum);

/// Returns in slice r what rank r has in the slice of its `input` [size * n, …] that is this
/// rank's. Gradient: the all-to-all of the gradients, back to where the slices came from.
at::Tensor all_to_all(const at::Tensor& input, const Group& group);

}  // namespace trireme::comm::functional

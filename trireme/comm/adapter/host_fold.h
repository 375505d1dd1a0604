// SPDX-License-Identifier: Apache-2.0
// Adds up, multiplies and so on what came from several hosts, in one order that does not depend on
// the engine that brought it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm {

/// The operation that phases run: averages and pre-multiplied sums are sums until the end.
c10d::ReduceOp::RedOpType phase_operation(const c10d::ReduceOp& op);

/// Multiplies `tensor` [n] by the factor of a pre-multiplied sum; any other operation leaves it
/// alone.
void scale_before(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// Divides `tensor` [n] by the number of ranks where `op` is the average; integers are cut off
/// towards zero.
void divide_after(const at::Tensor& tensor, const c10d::ReduceOp& op, int num_ranks);

/// Folds `part` into `into`, element by element; `op` is one of those that phases run.
void combine(at::Tensor& into, const at::Tensor& part, c10d::ReduceOp::RedOpType op);

/// out[i] = (((parts[0][i] op parts[1][i]) op parts[2][i]) ...), then divide_after. Sums and
/// products of fp16 and bf16 are carried in fp32 and rounded once. Runs on the calling thread only.
/// @param parts [P, n], contiguous; @param out [n], the same dtype, not overlapping `parts`.
void fold(const at::Tensor& parts, const c10d::ReduceOp& op, int num_ranks, const at::Tensor& out);

}  // namespace trireme::comm

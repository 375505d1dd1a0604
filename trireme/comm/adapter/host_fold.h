// SPDX-License-Identifier: Apache-2.0
// Reductions of CPU tensors that came from several hosts, in an order that does not depend on the
// engine between them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm {

/// Returns the reduction of the single phases. Averages and pre-multiplied sums are sums until the
/// end.
c10d::ReduceOp::RedOpType phase_operation(const c10d::ReduceOp& op);

/// Multiplies `tensor` [n] by the factor of a pre-multiplied sum. For an average of fp16 or bf16,
/// divides by a power of two, not below the number of ranks, so that sums between phases do not
/// overflow. Does nothing for other operations.
void scale_before(const at::Tensor& tensor, const c10d::ReduceOp& op, int num_ranks);

/// Divides `tensor` [n] by the number of ranks if `op` is the average, or by the part that
/// scale_before left of it for the dtype `type` of the tensors that are reduced. Integers are
/// rounded towards zero.
void divide_after(const at::Tensor& tensor, at::ScalarType type, const c10d::ReduceOp& op,
                  int num_ranks);

/// Combines `part` with `into` element by element, in place. `op` must be a result of
/// phase_operation.
void combine(at::Tensor& into, const at::Tensor& part, c10d::ReduceOp::RedOpType op);

/// Computes out[i] = (((parts[0][i] op parts[1][i]) op parts[2][i]) ...), and then divide_after.
/// Sums and products of fp16 and bf16 are computed in fp32 and rounded once. Runs on the calling
/// thread only.
/// @param parts [P, n], contiguous.
/// @param out [n], of the same dtype, not overlapping `parts`.
void fold(const at::Tensor& parts, const c10d::ReduceOp& op, int num_ranks, const at::Tensor& out);

}  // namespace trireme::comm

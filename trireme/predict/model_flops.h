// SPDX-License-Identifier: Apache-2.0
// Counts the floating-point operations of a module, from which a program's model FLOP utilization
// follows: the achieved FLOP/s of the model by the peak FLOP/s of the devices (Chowdhery et al.,
// "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B).
#pragma once

#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme::predict {

/// Returns the floating-point operations of forward and backward, for one call of `forward`: those
/// of matrix products, convolutions and attention, a multiplication and an addition each. They are
/// the operations that Prediction::flops_per_rank counts, for one rank and without recomputation.
/// Divide by the rows of the batch for JsonlWriterOptions::flops_per_sample:
///
///     const torch::Tensor row = torch::zeros({1, 64}, torch::kLong);
///     const double flops = trireme::predict::model_flops(*network, [&] {
///       return torch::cross_entropy_loss(network->forward(row).flatten(0, 1), row.flatten());
///     });
///
/// For each row of the input, a linear layer has twice as many as the weight has elements in
/// forward, and in backward twice that, or half of it if the input requires no gradient. Backward
/// of a convolution always counts both gradients. Fused attention has two products in forward and
/// five in backward, because its kernels repeat one, and half of that with a causal mask. Attention
/// of single operators has two and four, of all pairs. Which one runs is decided as on the CPU.
///
/// Nothing of the module is computed, and the generator of random numbers on the CPU is afterwards
/// as it was. Call it before `parallelize`, a
/// TrainingStep or a Model takes the module. The module may have no memory (trireme::deferred). Not
/// collective.
/// @param forward returns the loss. Its inputs are plain tensors. Throws UsageError as explain().
double model_flops(ModuleRef module, const std::function<at::Tensor()>& forward);

}  // namespace trireme::predict

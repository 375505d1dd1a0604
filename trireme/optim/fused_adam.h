// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW that step a parameter in one pass over memory, as `fused=True` does in Python.
// LibTorch's own classes make eight passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torch::optim {
class Adam;
class AdamW;
class Optimizer;
class OptimizerParamGroup;
struct AdamOptions;
struct AdamWOptions;
}  // namespace torch::optim

namespace trireme {

/// Returns a torch::optim::AdamW with another step(). Options, state and checkpoints are the same,
/// so either can resume from the state of the other. Results differ from LibTorch's class by
/// rounding alone. They are the bits of `torch.optim.AdamW(..., fused=True)` for tensors of whole
/// blocks of 64 elements; the kernel rounds the tails of others differently.
///
/// The bits of an element do not depend on where it lies in a tensor, so parameters that ranks step
/// in slices (ZeRO) get the bits that one process gives them. Parameters may be distributed tensors
/// and may be on any device for which PyTorch has the kernel.
///
/// step() throws UsageError for a gradient that is sparse, for complex parameters, and for state or
/// gradients that do not have the size, dtype, device or layout of their parameter.
std::unique_ptr<torch::optim::AdamW> fused_adamw(std::vector<at::Tensor> parameters,
                                                 const torch::optim::AdamWOptions& options);
/// Returns the same for groups of parameters; those without options of their own have `defaults`.
std::unique_ptr<torch::optim::AdamW> fused_adamw(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamWOptions& defaults);

/// Returns a torch::optim::Adam with another step(); everything else is as for fused_adamw().
std::unique_ptr<torch::optim::Adam> fused_adam(std::vector<at::Tensor> parameters,
                                               const torch::optim::AdamOptions& options);
/// Returns the same for groups of parameters; those without options of their own have `defaults`.
std::unique_ptr<torch::optim::Adam> fused_adam(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamOptions& defaults);

namespace detail {
/// Returns true for an optimizer that one of these functions has returned.
bool is_fused(const torch::optim::Optimizer& optimizer);
}  // namespace detail

}  // namespace trireme

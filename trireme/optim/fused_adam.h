// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW that step a parameter in one pass over memory, as `fused=True` does in Python.
// LibTorch's own classes make eight passes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

namespace trireme {

/// torch::optim::AdamW with another step(): same constructors, options, state and checkpoints, so
/// either class can resume from the state of the other. Results differ from LibTorch's class by
/// rounding alone. They are the bits of `torch.optim.AdamW(..., fused=True)` for tensors of whole
/// blocks of 64 elements; the kernel rounds the tails of others differently.
///
/// The bits of an element do not depend on where it lies in a tensor, so parameters that ranks step
/// in slices (ZeRO) get the bits that one process gives them. Parameters may be distributed tensors
/// and may be on any device for which PyTorch has the kernel.
class FusedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  /// Steps every parameter that has a gradient. Returns what `closure` returns, if there is one.
  /// @throws UsageError for a gradient that is sparse, for complex parameters, and for state or
  /// gradients that do not have the size, dtype, device or layout of their parameter.
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// torch::optim::Adam with another step(), as FusedAdamW is for torch::optim::AdamW.
class FusedAdam final : public torch::optim::Adam {
 public:
  using Adam::Adam;

  /// Steps every parameter that has a gradient. Returns what `closure` returns, if there is one.
  /// @throws UsageError for a gradient that is sparse, for complex parameters, and for state or
  /// gradients that do not have the size, dtype, device or layout of their parameter.
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace trireme

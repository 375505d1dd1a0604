// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW that step a parameter in one pass over memory, as `fused=True` does in Python.
// LibTorch's own classes need about ten.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

namespace trireme {

/// torch::optim::AdamW with another step(): same constructors, options, state and checkpoints, so
/// either class goes on where the other one stopped. Results are those of
/// `torch.optim.AdamW(..., fused=True)`; they differ from LibTorch's class by rounding alone.
///
/// The bits of an element do not depend on where it lies in a tensor, so parameters that ranks step
/// in slices (ZeRO) get the bits that one process gives them. Parameters may be distributed tensors
/// and may be on any device for which PyTorch has the kernel.
class FusedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  /// Steps every parameter that has a gradient. Returns what `closure` returns, if there is one.
  /// @throws UsageError for a gradient that is sparse, and for complex parameters.
  at::Tensor step(LossClosure closure = nullptr) override;
};

/// torch::optim::Adam with another step(), as FusedAdamW is for torch::optim::AdamW.
class FusedAdam final : public torch::optim::Adam {
 public:
  using Adam::Adam;

  /// Steps every parameter that has a gradient. Returns what `closure` returns, if there is one.
  /// @throws UsageError for a gradient that is sparse, and for complex parameters.
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace trireme

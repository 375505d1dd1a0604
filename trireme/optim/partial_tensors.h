// SPDX-License-Identifier: Apache-2.0
// Marks tensors that are only a part of what all ranks step: slices of ZeRO and parameters of a
// pipeline's stages. Their norm alone differs between ranks, so functions of all gradients
// (gradients.h) need a Sharing for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::detail {

/// Marks tensors as partial during its lifetime. It does not keep them alive; its owner must.
/// Move-only. Different threads may use different objects at the same time.
class PartialTensors {
 public:
  PartialTensors() = default;
  PartialTensors(PartialTensors&& other) noexcept;
  PartialTensors& operator=(PartialTensors&&) = delete;
  ~PartialTensors();

  /// Marks one more tensor. Several objects may mark the same tensor.
  void add(const at::Tensor& tensor);

 private:
  std::vector<const c10::TensorImpl*> own_;
};

/// Returns true if an optimizer steps a marked tensor, with or without a gradient.
bool steps_partial_tensors(const torch::optim::Optimizer& optimizer);

}  // namespace trireme::detail

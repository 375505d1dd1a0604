// SPDX-License-Identifier: Apache-2.0
// Tensors of which this rank steps a part only: slices of ZeRO, parameters of a pipeline's stages.
// A norm over them alone would be another number on each rank, so that functions of all gradients
// (gradients.h) must be told who has the rest.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::detail {

/// Marks tensors as partial while it lives. Does not keep them alive: the owner must. Move-only;
/// different objects may be used by different threads at a time.
class PartialTensors {
 public:
  PartialTensors() = default;
  PartialTensors(PartialTensors&& other) noexcept;
  PartialTensors& operator=(PartialTensors&&) = delete;
  ~PartialTensors();

  /// Marks one more tensor; one may be marked by several objects.
  void add(const at::Tensor& tensor);

 private:
  std::vector<const c10::TensorImpl*> own_;
};

/// Returns true where an optimizer steps a tensor that is marked, with a gradient or without.
bool steps_partial_tensors(const torch::optim::Optimizer& optimizer);

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Refuses to clip by the norm of one rank's stages: torch::nn::utils::clip_grad_norm_ finds no
// gradients for the parameters of other ranks, and each rank would scale by another number.
#pragma once

#include <trireme/parallel/zero/tensor_access.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// Throws UsageError from an operator that scales a gradient by a tensor after the norms of all
/// gradients were computed, as clip_grad_norm_ does. It allows optimizers that scale each gradient
/// by its own norm, norms that are only read, and clip_by_global_norm. Only on_access() is
/// thread-safe.
class StageNormCheck final : public detail::AccessObserver {
 public:
  StageNormCheck() = default;
  ~StageNormCheck() override { stop(); }
  StageNormCheck(const StageNormCheck&) = delete;
  StageNormCheck& operator=(const StageNormCheck&) = delete;

  /// Watches these gradients until stop(). Skips those without memory or with another observer.
  void start(const std::vector<at::Tensor>& gradients);
  /// Stops watching.
  void stop();

  void on_access(std::span<const detail::TensorAccess> all) override;

 private:
  // Weak references, because gradients may be reset. They keep the address of a watched storage
  // from being reused.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> watched_;
  std::int64_t num_gradients_ = 0;
  std::atomic<std::int64_t> num_norms_ = 0;
};

}  // namespace trireme::pipeline

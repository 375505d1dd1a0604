// SPDX-License-Identifier: Apache-2.0
// Refuses to clip by the norm of one rank's stages: torch::nn::utils::clip_grad_norm_ finds no
// gradients for the parameters of other ranks, and each rank would scale by another number.
#pragma once

#include <trireme/parallel/sharded/tensor_access.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// Throws UsageError out of the operator that scales a gradient by a tensor after the norms of all
/// gradients were taken, as clip_grad_norm_ does. Optimizers that scale each gradient by its own
/// norm, norms that are only looked at, and clip_by_global_norm are left alone. Not thread-safe but
/// for on_access.
class StageNormCheck final : public detail::AccessObserver {
 public:
  StageNormCheck() = default;
  ~StageNormCheck() override { stop(); }
  StageNormCheck(const StageNormCheck&) = delete;
  StageNormCheck& operator=(const StageNormCheck&) = delete;

  /// Watches these gradients until stop(); those without memory, or watched by others, are skipped.
  void start(const std::vector<at::Tensor>& gradients);
  void stop();

  void on_access(std::span<const detail::TensorAccess> all) override;

 private:
  // Weak: gradients may be reset, and an address is not to be another's as long as it is watched.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> watched_;
  std::int64_t num_gradients_ = 0;
  std::atomic<std::int64_t> num_norms_ = 0;
};

}  // namespace trireme::pipeline

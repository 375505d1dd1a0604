// SPDX-License-Identifier: Apache-2.0
// Refuses to clip by the norm of the gradients that one rank has, where other ranks have other
// parts: torch::nn::utils::clip_grad_norm_ would scale by another number on each rank.
#pragma once

#include <trireme/parallel/zero/tensor_access.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {

/// Throws UsageError from an operator that scales a gradient by a tensor after norms of gradients
/// were computed, as clip_grad_norm_ does, and from the one by which torch.amp.GradScaler looks for
/// infinite gradients. It allows norms that are only read, and clip_by_global_norm. Only
/// on_access() is thread-safe.
class PartNormCheck final : public AccessObserver {
 public:
  /// @param whose describes the gradients and the parts that this rank has, for the message.
  /// @param sharing an expression for the Sharing that clip_by_global_norm takes.
  PartNormCheck(std::string whose, std::string sharing)
      : whose_(std::move(whose)), sharing_(std::move(sharing)) {}
  ~PartNormCheck() override { stop(); }
  PartNormCheck(const PartNormCheck&) = delete;
  PartNormCheck& operator=(const PartNormCheck&) = delete;

  /// The number of norms after which scaling is refused. Optimizers that scale each gradient by its
  /// own norm need kOfAll.
  enum class Norms : std::uint8_t { kOfOne, kOfAll };

  /// Watches these gradients until stop(). Skips those without memory or with another observer.
  void start(const std::vector<at::Tensor>& gradients, Norms norms);
  /// Stops watching.
  void stop();

  void on_access(std::span<const TensorAccess> all) override;

 private:
  const std::string whose_;
  const std::string sharing_;
  // Weak references, because gradients may be reset. They keep the address of a watched storage
  // from being reused.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> watched_;
  std::int64_t most_norms_ = 0;  // the number of norms that do not make a mistake
  std::atomic<std::int64_t> num_norms_ = 0;
};

}  // namespace trireme::detail

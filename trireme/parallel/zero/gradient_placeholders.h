// SPDX-License-Identifier: Apache-2.0
// What stands in `.grad()` of parameters whose gradients the optimizer has in parts.
#pragma once

#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/tensor_access.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::detail {

/// Tensors like the parameters and without memory, whose use by any operator throws UsageError.
/// Where `.grad()` was undefined instead, torch::nn::utils::clip_grad_norm_ and code like it would
/// find no gradients and do nothing. Thread-safe but for `show` and `clear`, which autograd's
/// threads may call one at a time.
class GradientPlaceholders final : public AccessObserver {
 public:
  explicit GradientPlaceholders(const std::vector<NamedTensor>& parameters);
  ~GradientPlaceholders() override;
  GradientPlaceholders(const GradientPlaceholders&) = delete;
  GradientPlaceholders& operator=(const GradientPlaceholders&) = delete;

  /// Puts the placeholder of a parameter into its `.grad()`.
  void show(std::size_t parameter);
  /// Makes `.grad()` undefined where a placeholder is.
  void clear(std::size_t parameter);
  void clear();

  /// Throws UsageError.
  void on_access(std::span<const TensorAccess> all) override;

 private:
  struct Placeholder {
    NamedTensor parameter;
    at::Tensor gradient;
  };
  std::vector<Placeholder> all_;
  std::unordered_map<const c10::StorageImpl*, std::string> names_;
  std::atomic<int> num_shown_ = 0;
};

}  // namespace trireme::detail

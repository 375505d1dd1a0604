// SPDX-License-Identifier: Apache-2.0
// Placeholders in `.grad()` of parameters whose gradients are divided among ranks.
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

/// Tensors with the shapes of the parameters and without memory, which stand in `.grad()`. Any
/// operator that uses one throws UsageError. With undefined gradients,
/// torch::nn::utils::clip_grad_norm_ and similar code would silently do nothing. Thread-safe,
/// except that show() and clear() must be called by one thread at a time, which may be autograd's.
class GradientPlaceholders final : public AccessObserver {
 public:
  explicit GradientPlaceholders(const std::vector<NamedTensor>& parameters);
  ~GradientPlaceholders() override;
  GradientPlaceholders(const GradientPlaceholders&) = delete;
  GradientPlaceholders& operator=(const GradientPlaceholders&) = delete;

  /// Puts the placeholder of a parameter into its `.grad()`.
  void show(std::size_t parameter);
  /// Makes `.grad()` of a parameter undefined if its placeholder is there.
  void clear(std::size_t parameter);
  /// Does the same for all parameters.
  void clear();

  /// Throws UsageError naming the parameter, except for detach(), which zero_grad() calls.
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

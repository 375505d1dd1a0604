// SPDX-License-Identifier: Apache-2.0
// Gradients that parameters had before a step, put aside so that the sum of the step is by itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace trireme::detail {

/// Not thread-safe.
class GradientsAside {
 public:
  /// Takes `.grad()` of a parameter away.
  void take(const at::Tensor& parameter) {
    taken_.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
  }
  /// The same where the memory of `.grad()` is written again in the step.
  void take_copy(const at::Tensor& parameter) {
    const at::NoGradGuard no_grad;
    take(parameter);
    at::Tensor& gradient = taken_.back().second;
    if (gradient.defined()) gradient = gradient.clone();
  }

  /// Adds to what was taken what is there now, and gives both back.
  void add_back() {
    const at::NoGradGuard no_grad;
    for (auto& [parameter, before] : std::exchange(taken_, {})) {
      if (!before.defined()) continue;
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) before.add_(gradient);
      gradient = before;
    }
  }
  /// Gives back what was taken in place of what is there now.
  void put_back() {
    for (auto& [parameter, before] : std::exchange(taken_, {})) parameter.mutable_grad() = before;
  }
  /// Forgets what was taken.
  void clear() { taken_.clear(); }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> taken_;
};

}  // namespace trireme::detail

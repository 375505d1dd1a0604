// SPDX-License-Identifier: Apache-2.0
// Puts aside the gradients that parameters had before a step, so that the step's own gradients can
// be summed over ranks by themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace trireme::detail {

/// Keeps gradients of earlier steps while a step computes its own. Not thread-safe.
class GradientsAside {
 public:
  /// Takes `.grad()` of a parameter away and leaves it undefined.
  void take(const at::Tensor& parameter) {
    taken_.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
  }
  /// Takes a copy of `.grad()`, for a gradient whose memory the step overwrites.
  void take_copy(const at::Tensor& parameter) {
    const at::NoGradGuard no_grad;
    take(parameter);
    at::Tensor& gradient = taken_.back().second;
    if (gradient.defined()) gradient = gradient.clone();
  }

  /// Adds the present gradients to those taken, and puts the sums back into `.grad()`. A parameter
  /// that had no gradient before keeps the present one.
  void add_back() {
    const at::NoGradGuard no_grad;
    for (auto& [parameter, before] : std::exchange(taken_, {})) {
      if (!before.defined()) continue;
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) before.add_(gradient);
      gradient = before;
    }
  }
  /// Puts the gradients that were taken back in place of the present ones.
  void put_back() {
    for (auto& [parameter, before] : std::exchange(taken_, {})) parameter.mutable_grad() = before;
  }
  /// Forgets the gradients that were taken.
  void clear() { taken_.clear(); }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> taken_;
};

}  // namespace trireme::detail

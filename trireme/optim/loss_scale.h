// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scale for training in half precision (Micikevicius et al., "Mixed Precision
// Training", ICLR 2018, section 3.2).
#pragma once

#include <trireme/optim/gradients.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;  ///< after so many steps without overflow:
  std::int64_t growth_interval = 2000;
  double backoff = 0.5;  ///< after an overflow
  double minimum = 1;
};

/// Not thread-safe.
///
///     scale.scale(loss).backward();
///     if (scale.unscale(optimizer, parallel.sharing())) {
///       clip_by_global_norm(optimizer, 1.0, parallel.sharing());
///       optimizer.step();
///     }
class LossScale {
 public:
  /// Throws UsageError for values that cannot be.
  explicit LossScale(const LossScaleOptions& options = {});

  /// Returns the loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides all gradients by the scale, where they are finite on all ranks, and returns whether
  /// they are: the step is to be skipped where not. Adjusts the scale, alike on all ranks. To be
  /// called once a step, after its last backward(). Collective where `sharing` has parts.
  bool unscale(torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

  /// What unscale does, in two calls, for code that learns later whether all gradients are finite
  /// (PostValidation): divides all gradients by the scale, whatever they are. Not collective.
  void divide(torch::optim::Optimizer& optimizer) const;
  /// Adjusts the scale after a step whose gradients were finite on all ranks, or not. To be called
  /// with the same on all ranks.
  void adjust(bool were_finite);

  double value() const noexcept { return value_; }

  /// What a run that goes on needs.
  struct State {
    double value = 0;
    std::int64_t good_steps = 0;  ///< since the last change
  };
  State state() const noexcept { return {value_, good_steps_}; }
  /// Throws UsageError unless the value is finite and above 0, and the steps are 0 or more.
  void restore(const State& state);

 private:
  LossScaleOptions options_;
  double value_;
  std::int64_t good_steps_ = 0;  // since the last change
};

}  // namespace trireme

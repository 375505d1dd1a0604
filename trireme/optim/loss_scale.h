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

/// The parameters of a dynamic loss scale.
struct LossScaleOptions {
  double initial = 65536;               ///< the initial scale
  double growth = 2;                    ///< the factor after growth_interval steps without overflow
  std::int64_t growth_interval = 2000;  ///< the number of steps before the scale grows
  double backoff = 0.5;                 ///< the factor after an overflow
  double minimum = 1;                   ///< the smallest scale
};

/// A loss scale that adapts to overflows. Not thread-safe.
///
///     scale.scale(loss).backward();
///     if (scale.unscale(optimizer, parallel.sharing())) {
///       clip_by_global_norm(optimizer, 1.0, parallel.sharing());
///       optimizer.step();
///     }
class LossScale {
 public:
  /// Throws UsageError for options outside their permitted ranges.
  explicit LossScale(const LossScaleOptions& options = {});

  /// Returns the loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides all gradients by the scale if they are finite on all ranks, and returns true in that
  /// case. If it returns false, skip the optimizer step. Adjusts the scale, identically on all
  /// ranks. Call it once per step, after the last backward(). Collective if `sharing` has parts.
  bool unscale(torch::optim::Optimizer& optimizer, const Sharing& sharing = {});

  /// Divides all gradients by the scale, even if they are not finite. Not collective. Together with
  /// adjust() it does the same as unscale(), for code that learns later if all gradients are finite
  /// (PostValidation).
  void divide(torch::optim::Optimizer& optimizer) const;
  /// Adjusts the scale after a step.
  /// @param were_finite true if all gradients were finite on all ranks; it must be equal on all
  /// ranks.
  void adjust(bool were_finite);

  /// Returns the current scale.
  double value() const noexcept { return value_; }

  /// The state that a resumed run needs.
  struct State {
    double value = 0;             ///< the scale
    std::int64_t good_steps = 0;  ///< the steps without overflow since the last change
  };
  /// Returns the current state.
  State state() const noexcept { return {value_, good_steps_}; }
  /// Restores a state. Throws UsageError unless the value is finite and above 0, and the steps are
  /// 0 or more.
  void restore(const State& state);

 private:
  LossScaleOptions options_;
  double value_;
  std::int64_t good_steps_ = 0;  // steps without overflow since the last change
};

}  // namespace trireme

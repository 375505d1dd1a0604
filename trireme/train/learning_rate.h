// SPDX-License-Identifier: Apache-2.0
// Sets the learning rate of each step.
#pragma once

#include <trireme/optim/schedules.h>
#include <trireme/train/callback.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Gives every parameter group of an optimizer the learning rate `schedule` returns for the step
/// about to begin. The schedule depends on the step's numbers only, so a resumed run goes on with
/// the rates of an uninterrupted one.
///
///     trireme::LearningRate rates(optimizer, trireme::Schedule::cosine(0.1, 5000));
///     trireme::LearningRate rates(optimizer, [](const trireme::StepContext& step) {
///       return 0.1 * std::pow(0.5, step.epoch - 1);
///     });
class LearningRate final : public Callback {
 public:
  using RateOf = std::function<double(const StepContext&)>;

  /// @param optimizer must outlive the callback.
  LearningRate(torch::optim::Optimizer& optimizer, RateOf rate_of);
  /// By the number of the step since the first epoch.
  LearningRate(torch::optim::Optimizer& optimizer, const Schedule& schedule);

  void on_step_begin(const StepContext& step) override;

 private:
  torch::optim::Optimizer& optimizer_;
  RateOf rate_of_;
};

}  // namespace trireme

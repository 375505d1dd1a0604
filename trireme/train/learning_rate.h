// SPDX-License-Identifier: Apache-2.0
// Sets learning rates: of each step, or when a score no longer improves.
#pragma once

#include <trireme/optim/learning_rate_schedule.h>
#include <trireme/optim/plateau.h>
#include <trireme/train/callback.h>

#include <functional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Gives every parameter group of an optimizer the learning rate `schedule` returns for the step
/// about to begin. The schedule depends on the step's numbers only, so a resumed run goes on with
/// the rates of an uninterrupted one.
///
///     trireme::LearningRate rates(optimizer, trireme::LearningRateSchedule::cosine(0.1, 5000));
///     trireme::LearningRate rates(optimizer, [](const trireme::StepContext& step) {
///       return 0.1 * std::pow(0.5, step.epoch - 1);
///     });
class LearningRate final : public Callback {
 public:
  using RateOf = std::function<double(const StepContext&)>;

  /// @param optimizer must outlive the callback.
  LearningRate(torch::optim::Optimizer& optimizer, RateOf rate_of);
  /// By the number of the step since the first epoch.
  LearningRate(torch::optim::Optimizer& optimizer, const LearningRateSchedule& schedule);

  void on_step_begin(const StepContext& step) override;

 private:
  torch::optim::Optimizer& optimizer_;
  RateOf rate_of_;
};

struct PlateauLearningRateOptions : PlateauOptions {
  /// What is watched. Where it is empty: the loss of the evaluation, or the training's where the
  /// epoch ended without one. The same on all ranks.
  std::function<double(const EpochEndContext&)> score{};
};

/// Lowers every parameter group's learning rate when a score no longer improves from epoch to
/// epoch, as torch's ReduceLROnPlateau does. Goes on from training to training; checkpoints have
/// what it has seen, if it comes before the callback that saves.
///
///     trireme::PlateauLearningRate plateau(optimizer, {{.factor = 0.5, .patience = 3}});
class PlateauLearningRate final : public Callback {
 public:
  /// @param optimizer must outlive the callback.
  explicit PlateauLearningRate(torch::optim::Optimizer& optimizer,
                               PlateauLearningRateOptions options = {});

  void on_epoch_end(const EpochEndContext& epoch) override;
  std::string state() const override { return plateau_.state(); }
  void restore(const std::string& state) override;

 private:
  torch::optim::Optimizer& optimizer_;
  PlateauLearningRateOptions options_;
  Plateau plateau_;
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Callbacks that set learning rates: by a schedule of steps, or when a score no longer improves.
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

/// Sets the learning rate of every parameter group before each step, to the rate that a schedule
/// returns. The schedule depends on the numbers of the step only, so a resumed run uses the same
/// rates as an uninterrupted one.
///
///     trireme::LearningRate rates(optimizer, trireme::LearningRateSchedule::cosine(0.1, 5000));
///     trireme::LearningRate rates(optimizer, [](const trireme::StepContext& step) {
///       return 0.1 * std::pow(0.5, step.epoch - 1);
///     });
class LearningRate final : public Callback {
 public:
  /// Returns the learning rate of the step that is about to begin.
  using RateOf = std::function<double(const StepContext&)>;

  /// @param optimizer must outlive the callback.
  LearningRate(torch::optim::Optimizer& optimizer, RateOf rate_of);
  /// Takes the rates from `schedule`, by the number of the step since the first epoch.
  /// @param optimizer must outlive the callback.
  LearningRate(torch::optim::Optimizer& optimizer, const LearningRateSchedule& schedule);

  void on_step_begin(const StepContext& step) override;

 private:
  torch::optim::Optimizer& optimizer_;
  RateOf rate_of_;
};

/// Settings of PlateauLearningRate.
struct PlateauLearningRateOptions : PlateauOptions {
  /// Returns the score of an epoch. Must return the same on all ranks. By default the loss of the
  /// evaluation, or the training loss if the epoch ended without one.
  std::function<double(const EpochEndContext&)> score{};
};

/// Lowers the learning rate of every parameter group when a score no longer improves from epoch to
/// epoch, like torch.optim.lr_scheduler.ReduceLROnPlateau. What it has seen is kept from one
/// training to the next. Checkpoints contain the latest epoch if this callback comes before the one
/// that saves.
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

// SPDX-License-Identifier: Apache-2.0
// Callbacks that end a training early, on all ranks at the same step.
#pragma once

#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace trireme {

/// Settings of EarlyStopping.
struct EarlyStoppingOptions {
  /// The number of epochs without an improvement after which training ends, at least 1.
  std::int64_t patience = 3;
  /// A score is an improvement if it is lower than the best one by more than this.
  double min_delta = 0;
  /// Returns the score of an epoch, the lower the better. Return the negative of a number that
  /// should grow. By default the loss of the evaluation, or the training loss if the epoch ended
  /// without one.
  std::function<double(const EpochEndContext&)> score{};
};

/// Ends training when a score has stopped improving. A score that is not a number is no
/// improvement. Each training begins a new count, except that a training resumed from a checkpoint
/// continues its count. Throws UsageError for a patience below 1 or a min_delta below 0.
class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for options that are not allowed.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_run_begin(const RunContext& run) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  std::string state() const override;
  void restore(const std::string& state) override;

  /// Returns the lowest score of the last training; infinite if there was none.
  double best_score() const { return best_score_; }
  /// Returns the epoch of the lowest score; 0 if there was none.
  std::int64_t best_epoch() const { return best_epoch_; }

 private:
  EarlyStoppingOptions options_;
  double best_score_ = std::numeric_limits<double>::infinity();
  std::int64_t best_epoch_ = 0;
  std::int64_t epochs_without_ = 0;
};

/// Settings of TrainingLimit.
struct TrainingLimitOptions {
  /// The number of the last step, counted over all epochs; 0 for no limit.
  std::int64_t steps = 0;
  /// The time since training began. The step that begins after it is the last one. 0 for no limit.
  std::chrono::duration<double> time{0};
};

/// Ends training after a number of steps or a time, whichever comes first. A training that
/// continues after the last step takes no step. Throws UsageError for negative limits.
class TrainingLimit final : public Callback {
 public:
  /// Throws UsageError for negative limits.
  explicit TrainingLimit(const TrainingLimitOptions& options);

  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;

 private:
  TrainingLimitOptions options_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace trireme

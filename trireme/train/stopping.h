// SPDX-License-Identifier: Apache-2.0
// Callbacks that end a training before its last epoch, on all ranks at the same step.
#pragma once

#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace trireme {

struct EarlyStoppingOptions {
  /// Epochs without an improvement after which training ends.
  std::int64_t patience = 3;
  /// An improvement is less than the best score by more than this.
  double min_delta = 0;
  /// What is to become small. Where it is empty: the loss of the evaluation, or the training's
  /// where train was given nothing to evaluate with. Of what grows, give the negative.
  std::function<double(const EpochEndContext&)> score{};
};

/// Ends training when a score has stopped improving. One that is not a number is no improvement.
/// Each training counts anew, but one that was resumed from a checkpoint, which goes on. Throws
/// UsageError for a patience below 1 or a min_delta below 0.
class EarlyStopping final : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_run_begin(const RunContext& run) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  std::string state() const override;
  void restore(const std::string& state) override;

  /// The least score of the last run and its epoch; infinite and 0 where none was seen.
  double best_score() const { return best_score_; }
  std::int64_t best_epoch() const { return best_epoch_; }

 private:
  EarlyStoppingOptions options_;
  double best_score_ = std::numeric_limits<double>::infinity();
  std::int64_t best_epoch_ = 0;
  std::int64_t epochs_without_ = 0;
};

struct TrainingLimitOptions {
  /// The last step, counted over all epochs; 0: no limit.
  std::int64_t steps = 0;
  /// Time since train() began, after which the step about to begin is the last; 0: no limit.
  std::chrono::duration<double> time{0};
};

/// Ends training after a number of steps or a time, whichever comes first; one that goes on behind
/// the last step takes none. Throws UsageError for negative limits.
class TrainingLimit final : public Callback {
 public:
  explicit TrainingLimit(const TrainingLimitOptions& options);

  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;

 private:
  TrainingLimitOptions options_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace trireme

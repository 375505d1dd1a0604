// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints as training goes on: now and then, and the best.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

struct CheckpointOptions {
  /// Folder, prefix, and how many checkpoints of this prefix to keep.
  checkpoint::SaveOptions save{};
  /// After every n-th step, counted over all epochs; 0 for never.
  std::int64_t every_steps = 0;
  /// At the end of every n-th epoch; 0 for never.
  std::int64_t every_epochs = 1;
  /// After the step in which so much time has passed on rank 0 since training began or this
  /// callback saved; 0 for never.
  std::chrono::duration<double> every{0};
  /// Saves beside the training (Model::save_async): a step waits for a copy of what this rank
  /// writes, which takes that memory, and for the save before where that is not done. A failure
  /// ends training on all ranks, at the first step after a rank knows, or at the end. Other saves
  /// of the model (BestCheckpoint) wait for the one under way.
  bool asynchronous = false;
};

/// Saves `prefix-<epoch>_<step>` (Model::save) at those intervals, and when Model::request_save has
/// been called on any rank. That the folder can be written to is found out before training begins.
/// Throws CheckpointError where it cannot, or where saving fails, and UsageError for negative
/// intervals, or where all are 0.
class Checkpoint final : public Callback {
 public:
  explicit Checkpoint(CheckpointOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;
  void on_step_end(const StepEndContext& step) override;
  void on_epoch_end(const EpochEndContext& epoch) override;

 private:
  void save(const RunContext& run, std::int64_t global_step);

  CheckpointOptions options_;
  std::int64_t saved_at_ =
      -1;  // global step of the newest one, which an epoch's end need not save again
  std::chrono::steady_clock::time_point last_;  // beginning, or the newest one
};

struct BestCheckpointOptions {
  /// Folder and prefix, which must be another one than that of other checkpoints. Retention is this
  /// callback's.
  checkpoint::SaveOptions save{.folder = {}, .prefix = "best"};
  /// How many to keep.
  std::int64_t keep = 1;
  /// What is to become small; of what grows, give the negative. Where it is empty: the loss. The
  /// same on all ranks.
  std::function<double(const EvaluationEndContext&)> score{};
};

/// Saves a checkpoint after an evaluation whose score is among the best, and removes the worst that
/// is too many. A score that is not a number is never among them. Goes on from training to
/// training, and in a resumed run, if it comes before the callback that saved. Throws like
/// Checkpoint, and UsageError where training has nothing to evaluate with.
class BestCheckpoint final : public Callback {
 public:
  explicit BestCheckpoint(BestCheckpointOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_evaluation_end(const EvaluationEndContext& evaluation) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  std::string state() const override;
  void restore(const std::string& state) override;

  struct Saved {
    double score = 0;
    std::int64_t epoch = 0;
    std::int64_t global_step = 0;
    std::filesystem::path path;
  };
  /// Those that are kept, the best first.
  const std::vector<Saved>& best() const { return best_; }

 private:
  BestCheckpointOptions options_;
  std::vector<Saved> best_;
  bool has_evaluated_ = false;  // in this training
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Callbacks that save checkpoints during training: Checkpoint at intervals, BestCheckpoint by a
// score.
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

/// Settings of Checkpoint. At least one interval must be above 0.
struct CheckpointOptions {
  /// Folder, prefix, and the number of checkpoints with this prefix to keep.
  checkpoint::SaveOptions save{};
  /// Saves after every n-th step, counted over all epochs; 0 for never.
  std::int64_t every_steps = 0;
  /// Saves at the end of every n-th epoch; 0 for never.
  std::int64_t every_epochs = 1;
  /// Saves when this much time has passed on rank 0 since training began or since the last save of
  /// this callback; 0 for never.
  std::chrono::duration<double> every{0};
  /// Saves while training goes on (Model::save_async). A step then waits only until the data of
  /// this rank is copied to memory, and until an unfinished earlier save is done. The copy needs as
  /// much memory as this rank writes.
  /// A failure ends training on all ranks, at the first step after a rank knows of it, or at the
  /// end. Other saves of the model, such as those of BestCheckpoint, wait for the unfinished one.
  bool asynchronous = false;
  /// For `asynchronous`: with kBeforeChange, the next step copies only what is not written when its
  /// optimizer begins. Choose it if nothing else changes parameters and the state of the optimizer:
  /// no callback, and no forward, as that of an Embedding with `max_norm` does.
  checkpoint::Copying copying = checkpoint::Copying::kAtOnce;
};

/// Saves `prefix-<epoch>_<step>` (Model::save) at intervals, and after Model::request_save has been
/// called on any rank. Tests before training begins that the folder can be written to.
/// Throws CheckpointError if the folder cannot be written to or a save fails. The constructor
/// throws UsageError if an interval is negative or all are 0.
class Checkpoint final : public Callback {
 public:
  /// Throws UsageError for intervals that are not allowed.
  explicit Checkpoint(CheckpointOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;
  void on_step_end(const StepEndContext& step) override;
  void on_epoch_end(const EpochEndContext& epoch) override;

  /// Saves unless that step is saved already. Model calls it on all ranks before a run leaves.
  void save_now(const RunContext& run, std::int64_t global_step);
  /// Returns the settings.
  const CheckpointOptions& options() const noexcept { return options_; }

 private:
  void save(const RunContext& run, std::int64_t global_step);

  CheckpointOptions options_;
  std::int64_t saved_at_ =
      -1;  // global step of the newest one, which an epoch's end need not save again
  std::chrono::steady_clock::time_point last_;  // beginning, or the newest one
};

/// Settings of BestCheckpoint.
struct BestCheckpointOptions {
  /// Folder and prefix. No other checkpoints may use the same prefix. `save.keep` is ignored:
  /// `keep` below decides.
  checkpoint::SaveOptions save{.folder = {}, .prefix = "best"};
  /// The number of checkpoints to keep, at least 1.
  std::int64_t keep = 1;
  /// Returns the score of an evaluation, the lower the better. Return the negative of a number that
  /// should grow. Must return the same on all ranks. By default the loss.
  std::function<double(const EvaluationEndContext&)> score{};
};

/// Saves a checkpoint after an evaluation whose score is among the best, and removes the worst one
/// beyond `keep`. Ignores a score that is not a number.
/// The list of the best is kept from one training to the next. A resumed run continues it if this
/// callback comes before the callback that saved. Throws like Checkpoint, and UsageError if
/// training evaluates nothing.
class BestCheckpoint final : public Callback {
 public:
  /// Throws UsageError if `options.keep` is below 1.
  explicit BestCheckpoint(BestCheckpointOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_evaluation_end(const EvaluationEndContext& evaluation) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  std::string state() const override;
  void restore(const std::string& state) override;

  /// A checkpoint that was kept, with its score.
  struct Saved {
    double score = 0;              ///< the value of the metric
    std::int64_t epoch = 0;        ///< the epoch at whose end it was saved
    std::int64_t global_step = 0;  ///< steps over all epochs until then
    std::filesystem::path path;    ///< where it is
  };
  /// Returns the kept checkpoints, the best first.
  const std::vector<Saved>& best() const { return best_; }

 private:
  BestCheckpointOptions options_;
  std::vector<Saved> best_;
  bool has_evaluated_ = false;  // in this training
};

}  // namespace trireme

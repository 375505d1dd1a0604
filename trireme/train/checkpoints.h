// SPDX-License-Identifier: Apache-2.0
// Saves checkpoints as training goes on.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/train/callback.h>

#include <cstdint>

namespace trireme {

struct CheckpointOptions {
  /// Folder, prefix, and how many checkpoints of this prefix to keep.
  checkpoint::SaveOptions save{};
  /// After every n-th step, counted over all epochs; 0 for never.
  std::int64_t every_steps = 0;
  /// At the end of every n-th epoch; 0 for never.
  std::int64_t every_epochs = 1;
};

/// Saves `prefix-<epoch>_<step>` on rank 0 and removes the oldest; the other ranks never touch a
/// file. Blocks rank 0 until the checkpoint is on the disk. A failure there ends rank 0's train()
/// with CheckpointError. Throws UsageError for negative intervals, or where both are 0.
class Checkpoint final : public Callback {
 public:
  explicit Checkpoint(CheckpointOptions options);

  void on_step_end(const StepEndContext& step) override;
  void on_epoch_end(const EpochEndContext& epoch) override;

 private:
  CheckpointOptions options_;
  std::int64_t saved_at_ =
      -1;  // global step of the newest one, which an epoch's end need not save again
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// The tasks of `trireme checkpoint`: their parsed form and their execution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// A parsed command line.
struct CheckpointTask {
  /// The subcommand.
  enum class Kind { kInspect, kVerify, kDiff, kConvert, kPrune };
  /// The subcommand.
  Kind kind = Kind::kInspect;
  /// The positional arguments.
  std::vector<std::string> paths;
  /// The section to export (`convert`).
  std::string section = "model";
  /// The prefix of checkpoints (`convert`, `prune`).
  std::string prefix;
  /// The number of recent checkpoints to keep (`prune`).
  std::int64_t keep_last = 0;
  /// The number of best checkpoints to keep (`prune`).
  std::int64_t keep_best = 0;
  /// True if a higher score is better (`prune`).
  bool higher_is_better = false;
  /// The time span of which one checkpoint is kept (`prune`); 0 for none.
  std::int64_t keep_every_minutes = 0;
  /// Removes nothing (`prune`).
  bool dry_run = false;
};

/// Executes a task, prints its result and returns the exit code: 1 if a checkpoint is damaged or
/// two differ. Throws Error.
int do_checkpoint_task(const CheckpointTask& task);

}  // namespace trireme::apps

// SPDX-License-Identifier: Apache-2.0
// `trireme checkpoint`: what is to be done, parsed, and the doing of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

struct CheckpointTask {
  enum class Kind { kInspect, kVerify, kDiff, kConvert, kPrune };
  Kind kind = Kind::kInspect;
  std::vector<std::string> paths;
  std::string section = "model";
  std::string prefix;
  std::int64_t keep_last = 0;
  std::int64_t keep_best = 0;
  bool higher_is_better = false;
  std::int64_t keep_every_minutes = 0;
  bool dry_run = false;
};

/// Prints what is asked for; returns the exit code: 1 where a checkpoint is damaged, or two differ.
/// Throws Error.
int do_checkpoint_task(const CheckpointTask& task);

}  // namespace trireme::apps

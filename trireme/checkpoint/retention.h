// SPDX-License-Identifier: Apache-2.0
// Decides which checkpoints are kept, and removes the others.
#pragma once

#include <trireme/checkpoint/checkpoint_folder.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Rules for keeping checkpoints. A checkpoint is kept if one of the rules applies; the newest
/// always is.
struct Retention {
  /// The number of the most recent checkpoints; 0 keeps all.
  std::int64_t last = 5;
  /// The number of checkpoints with the best scores; those without a score do not count.
  std::int64_t best = 0;
  /// True if a higher score is better.
  bool higher_is_better = false;
  /// Keeps the first checkpoint in each time span of this length; 0 for none.
  std::chrono::minutes every{0};
};

/// Throws UsageError for negative numbers.
void check(const Retention& retention);

/// Removes the checkpoints of a prefix that no rule keeps, and returns their paths.
///
/// Only the owner of the prefix may call it. A checkpoint whose index cannot be read has no score
/// and no time.
/// @param folder the folder of the checkpoints.
/// @param prefix the prefix of their names.
/// @param retention the rules.
/// @param files the file operations.
/// @param dry_run removes nothing.
/// @throws UsageError for negative numbers.
/// @throws CheckpointError if a file operation fails, after removing everything else.
std::vector<std::filesystem::path> keep(const std::filesystem::path& folder,
                                        const std::string& prefix, const Retention& retention,
                                        FileLayer& files = system_files(), bool dry_run = false);

}  // namespace trireme::checkpoint

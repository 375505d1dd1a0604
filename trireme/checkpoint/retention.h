// SPDX-License-Identifier: Apache-2.0
// Which checkpoints stay.
#pragma once

#include <trireme/checkpoint/checkpoint_folder.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A checkpoint stays where one of these asks for it; the newest always does.
struct Retention {
  /// The last ones written; 0 for all.
  std::int64_t last = 5;
  /// Those with the best scores; ones without a score are never among them.
  std::int64_t best = 0;
  bool higher_is_better = false;
  /// The first one written in each span of so many minutes; 0 for none.
  std::chrono::minutes every{0};
};

/// Throws UsageError for negative numbers.
void check(const Retention& retention);

/// Removes the others of this prefix and returns their paths; `dry_run` removes nothing. For the
/// owner only. Throws UsageError for negative numbers, CheckpointError where the file system
/// refuses, having removed what it could; one whose index cannot be read counts as without a score,
/// and as written at no time.
std::vector<std::filesystem::path> keep(const std::filesystem::path& folder,
                                        const std::string& prefix, const Retention& retention,
                                        FileLayer& files = system_files(), bool dry_run = false);

}  // namespace trireme::checkpoint

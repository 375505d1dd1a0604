// SPDX-License-Identifier: Apache-2.0
// A run folder as values: what docs/formats/run.md describes, read back.
#pragma once

#include <trireme/report/records.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// What one rank wrote. A run that went on from an earlier step has replaced what came after it;
/// of two records of one step the later counts. All in the order of global steps, but failures,
/// which are all kept in the order in which they happened.
struct RankLog {
  int rank = 0;
  std::vector<RunRecord> runs{};
  /// Global steps from which a run went on after it had been stopped, failed or killed. Another
  /// call of `train` in the same program is none.
  std::vector<std::int64_t> resumed_at{};
  std::vector<StepRecord> steps{};
  std::vector<EpochRecord> epochs{};
  std::vector<EvaluationRecord> evaluations{};
  std::vector<CheckpointRecord> checkpoints{};
  std::vector<FailureRecord> failures{};
  /// Of the last run; nothing where it goes on still, failed, or was killed.
  std::optional<EndRecord> end{};
  /// Whether the last run failed.
  bool has_failed = false;
};

/// What all ranks wrote.
struct RunLog {
  std::string name;
  /// Of the run that began last.
  int world_size = 1;
  /// Those that have a file, by rank.
  std::vector<RankLog> ranks{};
  /// What is missing or damaged, in words.
  std::vector<std::string> notes{};
  /// The text of `config.toml`, where there is one.
  std::string config{};
};

/// Returns whether every step record says how many samples all ranks had together: then no sum over
/// ranks is needed, which would count samples twice where ranks work on the same ones.
bool knows_all_samples(const RunLog& run);

/// Reads `events-rank<r>.jsonl` of every rank. A last line that was cut off by a kill, other lines
/// that are no records, ranks without a file, and ranks that end early are notes, not errors. Holds
/// all step records: some 250 bytes each. Throws ConfigError where the folder or every such file is
/// missing, and for a format that it does not know.
RunLog read_run(const std::filesystem::path& folder);

}  // namespace trireme::report

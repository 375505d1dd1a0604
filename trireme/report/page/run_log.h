// SPDX-License-Identifier: Apache-2.0
// Reads a run folder, as described in docs/formats/run.md, into values.
#pragma once

#include <trireme/report/page/pipeline_pictures.h>
#include <trireme/report/records.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// The records of one rank. If a run was resumed from an earlier step, the later records replace
/// those after that step. If two records have the same step, the later one counts. Records are
/// ordered by global step; failures are all kept, in the order in which they occurred.
struct RankLog {
  int rank = 0;
  /// The records of the run's beginnings, one per call of `train`.
  std::vector<RunRecord> runs{};
  /// The global steps at which a run was resumed after it had been stopped, failed or killed.
  /// Another call of `train` in the same program does not count.
  std::vector<std::int64_t> resumed_at{};
  std::vector<StepRecord> steps{};              ///< step records
  std::vector<EpochRecord> epochs{};            ///< ends of epochs
  std::vector<EvaluationRecord> evaluations{};  ///< results of evaluations
  std::vector<CheckpointRecord> checkpoints{};  ///< saved checkpoints
  std::vector<FailureRecord> failures{};        ///< exceptions that ended a run
  /// The end of the last run. std::nullopt if that run is still going on, failed, or was killed.
  std::optional<EndRecord> end{};
  /// True if the last run failed.
  bool has_failed = false;
};

/// The peak rate of the devices of a run, to which its FLOP/s are compared.
struct Peak {
  double flops = 0;       ///< FLOP/s of all ranks together
  std::string dtype{};    ///< the dtype of the products
  std::string cluster{};  ///< the name of the description that says it
};

/// The records of all ranks.
struct RunLog {
  std::string name;  ///< the name of the folder
  /// The world size of the run that began last.
  int world_size = 1;
  /// The ranks that have a file, in ascending order.
  std::vector<RankLog> ranks{};
  /// Descriptions of what is missing or damaged.
  std::vector<std::string> notes{};
  /// The text of `config.toml`, or empty if there is none.
  std::string config{};
  /// The peak rate that the last run has recorded. A caller may set another one.
  std::optional<Peak> peak{};
  /// The measured timelines of the pipeline, if there is one.
  PipelinePictures pipeline_pictures{};
};

/// Returns true if every step record contains the number of samples of all ranks. No sum over ranks
/// is needed then, which would count samples twice if several ranks work on the same ones.
bool knows_all_samples(const RunLog& run);

/// Returns the number of tokens in each sample, as the last run says; std::nullopt if none says it.
std::optional<double> tokens_per_sample_of(const RunLog& run);

/// Returns the FLOPs of forward and backward of a sample in the same way.
std::optional<double> flops_per_sample_of(const RunLog& run);

/// Returns the dtype of matrix products in the same way.
std::optional<std::string> dtype_of(const RunLog& run);

/// Reads `events-rank<r>.jsonl` of every rank, `config.toml` and the timelines of pipelines. The
/// following are notes and not errors: a last line that was cut off, other lines that are not
/// records, ranks without a file, and ranks that end early. Keeps all step records in memory, about
/// 250 bytes each. Throws ConfigError if the folder or all such files are missing, or if the format
/// is unknown.
RunLog read_run(const std::filesystem::path& folder);

}  // namespace trireme::report

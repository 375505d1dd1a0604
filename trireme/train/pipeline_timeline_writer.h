// SPDX-License-Identifier: Apache-2.0
// PipelineTimelineWriter: measures the times of all actions of a pipeline in chosen steps, and
// writes them as a picture and as a trace. `trireme report` shows the pictures.
#pragma once

#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/schedule/schedule.h>
#include <trireme/train/callback.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme {

/// The measurements of a step of a plan with stages.
struct MeasuredPipeline {
  /// The schedule as it was executed, with its messages.
  schedule::Schedule schedule{};
  /// The times and the memory of the ranks along `pipe` that work on the same data as this rank.
  pipeline::StepReport report{};
};

/// Settings of PipelineTimelineWriter.
struct PipelineTimelineWriterOptions {
  /// The folder of the files.
  std::filesystem::path folder{};
  /// The numbers of the steps that are measured, from 1 over all epochs. The first steps with new
  /// shapes of batches are slower than others.
  std::vector<std::int64_t> steps{10};
};

/// Writes `pipeline-step<n>.svg` and `pipeline-step<n>.json` on rank 0, for its pipeline: a picture
/// and a trace for chrome://tracing or Perfetto (docs/formats/run.md). Writes nothing if the plan
/// has no stages, and for steps that the training does not reach. In a step that is measured, the
/// ranks along `pipe` wait for each other at the beginning, and send their times at the end. Other
/// steps stay as they are. On accelerators, times are those at which the host queued the operators.
/// Files that cannot be written later are warnings.
class PipelineTimelineWriter final : public Callback {
 public:
  /// Throws UsageError for a step below 1, and if there are no steps.
  explicit PipelineTimelineWriter(PipelineTimelineWriterOptions options);

  /// Throws ConfigError on rank 0 if the folder cannot be written to.
  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;
  void on_step_end(const StepEndContext& step) override;

 private:
  bool is_chosen(const StepContext& step) const;
  std::filesystem::path file_of(std::int64_t step, const char* ending) const;

  PipelineTimelineWriterOptions options_;
};

}  // namespace trireme

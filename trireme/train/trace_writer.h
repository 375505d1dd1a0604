// SPDX-License-Identifier: Apache-2.0
// TraceWriter: writes a timeline of a training for chrome://tracing or Perfetto.
#pragma once

#include <trireme/report/trace_file.h>
#include <trireme/train/callback.h>
#include <trireme/train/clock_offsets.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Settings of TraceWriter.
struct TraceWriterOptions {
  /// The folder of the files.
  std::filesystem::path folder{};
  /// The first step that is written, counted from the beginning of the training. At least 1.
  std::int64_t first_step = 1;
  /// The number of steps that are written, about 1 KB each. At least 1.
  std::int64_t num_steps = 1000;
};

/// Writes `trace-rank<r>.json` on every rank during training: each step with its phases,
/// evaluations and checkpoints. At the end rank 0 combines all files into `trace.json`. Times there
/// are on the clock of rank 0, with the possible error of each rank's times (docs/formats/run.md).
/// Each training overwrites the files.
/// Give this callback to all ranks: its hooks at the beginning and the end of a run are collective.
/// Throws ConfigError if the files cannot be written, and UsageError if first_step or num_steps is
/// below 1.
class TraceWriter final : public Callback {
 public:
  /// Throws UsageError if first_step or num_steps is below 1.
  explicit TraceWriter(TraceWriterOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_step_end(const StepEndContext& step) override;
  void on_evaluation_begin(const EvaluationContext& evaluation) override;
  void on_evaluation_end(const EvaluationEndContext& evaluation) override;
  void on_checkpoint_begin(const CheckpointContext& checkpoint) override;
  void on_checkpoint_end(const CheckpointEndContext& checkpoint) override;
  void on_run_end(const RunContext& run) override;
  void on_failure(const FailureContext& failure) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  std::string own_trace() const;
  double microseconds(Clock::time_point moment) const;
  void add_since(const std::string& name, Clock::time_point begin, std::int64_t epoch,
                 std::int64_t global_step);

  TraceWriterOptions options_;
  std::unique_ptr<report::TraceFile> file_;  // null while none is open
  Clock::time_point began_;
  Clock::time_point evaluation_began_;
  Clock::time_point checkpoint_began_;
  std::vector<detail::ClockOffset> offsets_;  // at the beginning, by rank
  std::int64_t num_steps_ = 0;                // of this training so far
};

}  // namespace trireme

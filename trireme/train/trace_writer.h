// SPDX-License-Identifier: Apache-2.0
// TraceWriter: writes a timeline of a training for chrome://tracing or Perfetto. Clock offsets tell
// how far the clocks of ranks are apart, so that the times of all of them fit on one axis.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/report/trace_file.h>
#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::detail {

/// The offset of the clock of a rank in nanoseconds: rank 0's time is that rank's time plus
/// `offset`. The true offset is within `offset` plus or minus `error`.
struct ClockOffset {
  std::int64_t offset = 0;
  std::int64_t error = 0;
};

/// Measures the offset of `clock` on every rank; returns the same on all, by rank. A message bounds
/// the offset of two clocks from one side: it was received after it was sent. A message in the
/// other direction bounds it from the other side. The tightest bounds of many messages count
/// (Marzullo and Owicki, "Maintaining the Time in a Distributed System", 1983).
/// The clocks must not drift during the measurement, which takes less than a millisecond in shared
/// memory. Collective and blocking.
/// @param clock returns nanoseconds and never goes back.
std::vector<ClockOffset> measure_clock_offsets(const comm::Group& group,
                                               const std::function<std::int64_t()>& clock);

}  // namespace trireme::detail

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

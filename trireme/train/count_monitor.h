// SPDX-License-Identifier: Apache-2.0
// CountMonitor: a callback that logs what modules count in their buffers, such as the tokens that
// each expert of a mixture has taken.
#pragma once

#include <trireme/train/callback.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Settings of CountMonitor.
struct CountMonitorOptions {
  /// Patterns of names as named_buffers() returns them; `*` matches any characters. Each must match
  /// a buffer of integers without dims or with one.
  std::vector<std::string> buffers{};
  /// Logs every n-th step what was counted since the last time. Give a JsonlWriter the same number,
  /// since it writes what is logged in the steps that it records.
  std::int64_t every_steps = 1;
};

/// Logs how much buffers have grown, summed over the rows of all ranks: `<name>/<index>` for each
/// element, and `<name>` for a buffer without dims. The numbers are equal on all ranks. `trireme
/// report` shows the elements of a buffer in one chart.
///
///     trireme::CountMonitor counts({.buffers = {"*.tokens_taken", "*.tokens_dropped"}});
///
/// Sets the buffers to zero before every step and after backward. What was counted since the last
/// logged step is lost when training ends, and begins at zero when it is resumed.
///
///  Give it to all ranks, because it communicates: one
/// all-reduce of all counts in the steps that it logs. Give it before the callbacks that write.
///
/// Training throws UsageError before it begins for a pattern that matches no buffer, a buffer that
/// cannot be counted, and a plan that copies the buffers of rank 0 over the counts of other ranks
/// (`broadcast_buffers`, with several ranks along `data` and without a TrainingStep).
class CountMonitor final : public Callback {
 public:
  /// Throws UsageError without patterns, and for an interval below 1.
  explicit CountMonitor(CountMonitorOptions options);

  void on_run_begin(const RunContext& run) override;
  void on_step_begin(const StepContext& step) override;
  void on_backward_end(const StepContext& step) override;
  void on_step_end(const StepEndContext& step) override;

 private:
  void take_counts();

  CountMonitorOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  std::vector<double> counts_;  // of this rank since the last time, all buffers one after the other
};

}  // namespace trireme

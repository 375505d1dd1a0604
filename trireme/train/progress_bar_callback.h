// SPDX-License-Identifier: Apache-2.0
// Shows how far training has come.
#pragma once

#include <trireme/report/progress_bar.h>
#include <trireme/train/callback.h>

#include <string>

namespace trireme {

/// Shows each epoch on rank 0 and nothing elsewhere: on a terminal one line with a bar, step, loss,
/// samples a second over all ranks and time left, redrawn in place; in a file or a pipe ten plain
/// lines an epoch. An epoch ends with a line that stays: mean loss of all ranks, accuracy where the
/// epoch was evaluated, rate and time.
class ProgressBar final : public Callback {
 public:
  /// @param unit what a sample is called, such as `images`.
  /// @param console must outlive the callback.
  explicit ProgressBar(std::string unit = "samples",
                       report::Console& console = report::Console::standard(),
                       report::Clock clock = report::steady_clock());

  void on_epoch_begin(const EpochContext& epoch) override;
  void on_step_end(const StepEndContext& step) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  void on_run_end(const RunContext& run) override;
  void on_failure(const FailureContext& failure) noexcept override;

 private:
  report::ProgressBar bar_;
};

}  // namespace trireme

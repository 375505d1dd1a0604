// SPDX-License-Identifier: Apache-2.0
// ProgressBar: shows how far training has come.
#pragma once

#include <trireme/report/progress_bar.h>
#include <trireme/train/callback.h>

#include <string>

namespace trireme {

/// Shows the progress of each epoch on rank 0, and nothing on other ranks. On a terminal it redraws
/// one line with a bar, step, loss, samples per second over all ranks and the time left. In a file
/// or a pipe it prints ten plain lines per epoch.
/// After each epoch it prints a final line: mean loss of all ranks, accuracy if the epoch was
/// evaluated, rate and time.
class ProgressBar final : public Callback {
 public:
  /// @param unit the name of a sample, such as `images`.
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

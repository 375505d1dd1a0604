// SPDX-License-Identifier: Apache-2.0
// Prints the loss as training goes on.
#pragma once

#include <trireme/report/console.h>
#include <trireme/train/callback.h>

namespace trireme {

/// Prints `epoch: 1 step: 1, loss is 1.4686084` after every n-th step, counted over all epochs: the
/// loss of this rank with the fewest digits that read back as the same float32. Every rank prints
/// its own; the launcher shows that of rank 0 and keeps each in a file.
class LossMonitor final : public Callback {
 public:
  /// @param every_steps at least 1, else UsageError.
  /// @param console must outlive the callback.
  explicit LossMonitor(std::int64_t every_steps = 1,
                       report::Console& console = report::Console::standard());

  void on_step_end(const StepEndContext& step) override;

 private:
  std::int64_t every_steps_;
  report::Console& console_;
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// LossMonitor: prints the loss during training.
#pragma once

#include <trireme/report/console.h>
#include <trireme/train/callback.h>

namespace trireme {

/// Prints a line such as `epoch: 1 step: 1, loss is 1.4686084` after every n-th step, counted over
/// all epochs. The loss is that of this rank, with the fewest digits that read back as the same
/// float32. Every rank prints its own. The launcher shows the output of rank 0 and stores that of
/// each rank in a file.
class LossMonitor final : public Callback {
 public:
  /// @param every_steps at least 1, else UsageError is thrown.
  /// @param console must outlive the callback.
  explicit LossMonitor(std::int64_t every_steps = 1,
                       report::Console& console = report::Console::standard());

  void on_step_end(const StepEndContext& step) override;

 private:
  std::int64_t every_steps_;
  report::Console& console_;
};

}  // namespace trireme

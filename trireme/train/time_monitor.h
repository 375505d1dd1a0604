// SPDX-License-Identifier: Apache-2.0
// TimeMonitor: prints the times of epochs and steps.
#pragma once

#include <trireme/report/console.h>
#include <trireme/train/callback.h>

namespace trireme {

/// Prints a line such as `epoch time: 1234.5 ms, per step time: 12.3 ms` after every epoch. The
/// first number is the training time, with the callbacks of steps and without the evaluation. The
/// second is that time divided by the number of steps taken. Every rank prints its own.
class TimeMonitor final : public Callback {
 public:
  /// @param console must outlive the callback.
  explicit TimeMonitor(report::Console& console = report::Console::standard())
      : console_(console) {}

  void on_epoch_end(const EpochEndContext& epoch) override;

 private:
  report::Console& console_;
};

}  // namespace trireme

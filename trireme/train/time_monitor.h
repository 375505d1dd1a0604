// SPDX-License-Identifier: Apache-2.0
// Prints how long epochs and steps take.
#pragma once

#include <trireme/report/console.h>
#include <trireme/train/callback.h>

namespace trireme {

/// Prints `epoch time: 1234.5 ms, per step time: 12.3 ms` after every epoch: the time of training,
/// with callbacks of steps and without the evaluation, and the same divided by the steps taken.
/// Every rank prints its own.
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

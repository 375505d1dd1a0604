// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/time_monitor.h>

#include <trireme/base/error.h>
#include <trireme/report/number.h>

namespace trireme {

void TimeMonitor::on_epoch_end(const EpochEndContext& epoch) {
  const double milliseconds = epoch.seconds * 1e3;
  const auto steps = static_cast<double>(epoch.run.steps_in_epoch - epoch.steps_done);
  console_.line(join_message("epoch time: ", report::fixed(milliseconds, 1), " ms, per step time: ",
                             report::fixed(milliseconds / steps, 3), " ms"));
}

}  // namespace trireme

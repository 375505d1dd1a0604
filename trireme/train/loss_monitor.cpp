// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loss_monitor.h>

#include <trireme/base/error.h>
#include <trireme/report/number.h>

namespace trireme {

LossMonitor::LossMonitor(std::int64_t every_steps, report::Console& console)
    : every_steps_(every_steps), console_(console) {
  if (every_steps < 1) {
    throw UsageError(join_message("a loss monitor prints every n-th step, got n = ", every_steps),
                     "give 1 or more");
  }
}

void LossMonitor::on_step_end(const StepEndContext& step) {
  if (step.global_step % every_steps_ != 0) return;
  console_.line(join_message("epoch: ", step.epoch, " step: ", step.step, ", loss is ",
                             report::shortest(step.loss)));
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/progress_bar_callback.h>

#include <trireme/base/error.h>
#include <trireme/report/number.h>
#include <trireme/train/model.h>

#include <utility>

namespace trireme {

ProgressBar::ProgressBar(std::string unit, report::Console& console, report::Clock clock)
    : bar_(console, std::move(unit), std::move(clock)) {}

void ProgressBar::on_epoch_begin(const EpochContext& epoch) {
  if (epoch.run.rank != 0) return;
  bar_.begin(join_message("epoch ", epoch.epoch, "/", epoch.run.last_epoch),
             epoch.run.steps_in_epoch, epoch.steps_done);
}

void ProgressBar::on_step_end(const StepEndContext& step) {
  if (step.run.rank != 0) return;
  bar_.update(step.step, step.loss, step.all_samples);
}

void ProgressBar::on_epoch_end(const EpochEndContext& epoch) {
  if (epoch.run.rank != 0) return;
  std::string summary = std::string("mean loss ") + report::fixed(epoch.mean_loss, 4);
  if (epoch.evaluation) {
    summary += std::string("  test loss ") + report::fixed(epoch.evaluation->loss, 4);
    if (const auto accuracy = epoch.evaluation->accuracy) {
      summary += std::string("  test accuracy ") + report::fixed(*accuracy * 100, 2) + " %";
    }
  }
  bar_.finish(summary);
}

// An epoch that was interrupted has no final line.
void ProgressBar::on_run_end(const RunContext& run) {
  if (run.rank == 0) bar_.abandon();
}

void ProgressBar::on_failure(const FailureContext& failure) noexcept {
  if (failure.run.rank == 0) bar_.abandon();
}

}  // namespace trireme

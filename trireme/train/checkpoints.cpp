// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/checkpoints.h>

#include <trireme/base/error.h>
#include <trireme/train/model.h>

#include <utility>

namespace trireme {

Checkpoint::Checkpoint(CheckpointOptions options) : options_(std::move(options)) {
  if (options_.every_steps < 0 || options_.every_epochs < 0 ||
      options_.every_steps + options_.every_epochs == 0) {
    throw UsageError(
        join_message("checkpoints need an interval: every_steps is ", options_.every_steps,
                     ", every_epochs is ", options_.every_epochs),
        "set at least one of them to 1 or more, the other to 0");
  }
}

void Checkpoint::on_step_end(const StepEndContext& step) {
  if (options_.every_steps == 0 || step.global_step % options_.every_steps != 0) return;
  step.run.model.save(options_.save);
  saved_at_ = step.global_step;
}

void Checkpoint::on_epoch_end(const EpochEndContext& epoch) {
  if (options_.every_epochs == 0 || epoch.epoch % options_.every_epochs != 0) return;
  if (saved_at_ != epoch.global_step) epoch.run.model.save(options_.save);
  saved_at_ = epoch.global_step;
}

}  // namespace trireme

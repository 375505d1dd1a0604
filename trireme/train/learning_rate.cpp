// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/learning_rate.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <utility>

namespace trireme {

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, RateOf rate_of)
    : optimizer_(optimizer), rate_of_(std::move(rate_of)) {}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, const LearningRateSchedule& schedule)
    : LearningRate(optimizer,
                   [schedule](const StepContext& step) { return schedule(step.global_step); }) {}

void LearningRate::on_step_begin(const StepContext& step) {
  const double rate = rate_of_(step);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
}

PlateauLearningRate::PlateauLearningRate(torch::optim::Optimizer& optimizer,
                                         PlateauLearningRateOptions options)
    : optimizer_(optimizer), options_(std::move(options)), plateau_(options_) {
  if (options_.score) return;
  options_.score = [](const EpochEndContext& epoch) {
    return epoch.evaluation ? epoch.evaluation->loss : epoch.mean_loss;
  };
}

void PlateauLearningRate::on_epoch_end(const EpochEndContext& epoch) {
  if (epoch.run.is_dry_run || !plateau_.observe(options_.score(epoch))) return;
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(plateau_.lowered(group.options().get_lr()));
  }
}

void PlateauLearningRate::restore(const std::string& state) {
  try {
    plateau_.restore(state);
  } catch (const UsageError& error) {
    throw CheckpointError(error.what(), "resume from another checkpoint");
  }
}

}  // namespace trireme

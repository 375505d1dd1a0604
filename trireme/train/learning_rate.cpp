// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/learning_rate.h>

#include <torch/torch.h>

#include <utility>

namespace trireme {

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, RateOf rate_of)
    : optimizer_(optimizer), rate_of_(std::move(rate_of)) {}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, const Schedule& schedule)
    : LearningRate(optimizer,
                   [schedule](const StepContext& step) { return schedule(step.global_step); }) {}

void LearningRate::on_step_begin(const StepContext& step) {
  const double rate = rate_of_(step);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
}

}  // namespace trireme

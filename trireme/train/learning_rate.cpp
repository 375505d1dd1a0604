// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/learning_rate.h>

#include <torch/torch.h>

#include <utility>

namespace trireme {

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {}

void LearningRate::on_step_begin(const StepContext& step) {
  const double rate = schedule_(step);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/evaluation_mode.h>

#include <torch/nn/module.h>

namespace trireme::pipeline {

EvaluationMode::EvaluationMode(torch::nn::Module& module) {
  module.apply(
      [this](torch::nn::Module& child) { modes_.emplace_back(&child, child.is_training()); });
  module.eval();
}

// Deepest parts last, since train() goes down to the children.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, mode] : modes_) module->train(mode);
}

}  // namespace trireme::pipeline

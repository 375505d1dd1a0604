// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/evaluation_mode.h>

#include <torch/nn/module.h>

namespace trireme::detail {

ModeGuard::ModeGuard(torch::nn::Module& module) {
  module.apply(
      [this](torch::nn::Module& child) { modes_.emplace_back(&child, child.is_training()); });
}

// Deepest parts last, since train() goes down to the children.
ModeGuard::~ModeGuard() {
  for (const auto& [module, mode] : modes_) module->train(mode);
}

EvaluationMode::EvaluationMode(torch::nn::Module& module) : modes_(module) { module.eval(); }

}  // namespace trireme::detail

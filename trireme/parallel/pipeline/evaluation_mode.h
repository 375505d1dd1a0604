// SPDX-License-Identifier: Apache-2.0
// A module as it is in an evaluation.
#pragma once

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::pipeline {

/// As long as it lives, the module is in evaluation mode, and nothing has gradients; then its parts
/// are in the modes in which they were.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
  at::NoGradGuard no_gradients_;
};

}  // namespace trireme::pipeline

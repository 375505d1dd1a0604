// SPDX-License-Identifier: Apache-2.0
// Guards of the modes of a module: training or evaluation, for each of its parts.
#pragma once

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// Puts every part of a module back into the mode in which it was, at the end. The parts must
/// outlive it.
class ModeGuard {
 public:
  explicit ModeGuard(torch::nn::Module& module);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

/// As long as it lives, the module is in evaluation mode, and nothing has gradients.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);

 private:
  ModeGuard modes_;
  at::NoGradGuard no_gradients_;
};

}  // namespace trireme::detail

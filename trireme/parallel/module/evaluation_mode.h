// SPDX-License-Identifier: Apache-2.0
// Guards that change the mode of a module (training or evaluation) and restore it at scope exit.
#pragma once

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// Remembers the mode of a module and of all its submodules, and restores it when destroyed. The
/// submodules must outlive the guard.
class ModeGuard {
 public:
  explicit ModeGuard(torch::nn::Module& module);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

/// Puts a module into evaluation mode and disables gradients (at::NoGradGuard) while it lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);

 private:
  ModeGuard modes_;
  at::NoGradGuard no_gradients_;
};

}  // namespace trireme::detail

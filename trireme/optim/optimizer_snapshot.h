// SPDX-License-Identifier: Apache-2.0
// An optimizer step that can be undone. It keeps a copy of everything that the step changes, and
// the gradients and settings of the step.
#pragma once

#include <trireme/optim/state_fields.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
class OptimizerParamState;
}  // namespace torch::optim

namespace trireme::detail {

/// Keeps one step of an optimizer for which has_known_state() is true. Not thread-safe.
class OptimizerSnapshot {
 public:
  /// Refers to `optimizer`, which must outlive this object.
  explicit OptimizerSnapshot(torch::optim::Optimizer& optimizer);
  OptimizerSnapshot(const OptimizerSnapshot&) = delete;
  OptimizerSnapshot& operator=(const OptimizerSnapshot&) = delete;
  ~OptimizerSnapshot();

  /// Copies what the optimizer is about to change, and steps it. If the optimizer throws, restores
  /// everything and rethrows.
  void step();

  // Exactly one of the following three functions ends a step.

  /// Keeps the result of the step and forgets its data. The memory of the copies is kept for reuse.
  void release();
  /// Restores parameters and state bit by bit, in the same tensors, and forgets the step.
  void roll_back();
  /// Restores parameters and state, multiplies the gradients of the step by `factor`, and steps
  /// again with the settings that the optimizer had.
  void step_again(double factor);

  /// Throws UsageError, and forgets the step, if other code has changed gradients, parameters or
  /// state since. Resetting gradients is permitted.
  void check_unchanged();

  /// Returns the size of the copies in bytes.
  std::int64_t bytes() const noexcept;

 private:
  // The data of one parameter. Its handles are empty except between step() and the end of the step.
  struct Kept {
    at::Tensor stepped;
    at::Tensor gradient;
    std::int64_t stepped_version = 0;
    std::int64_t gradient_version = 0;
    bool had_state = false;
    const torch::optim::OptimizerParamState* state = nullptr;  // as it was after the step
    std::int64_t count = 0;                                    // the state's number of steps
    std::array<at::Tensor, kMostStateTensors> fields;          // the state's own tensors
    bool is_listed = false;                                    // still listed by the optimizer
    at::Tensor copy;
    std::array<at::Tensor, kMostStateTensors> copies;
  };

  void keep_all();
  void keep(Kept& kept, const at::Tensor& stepped);
  void restore(Kept& kept);
  torch::optim::OptimizerParamState* state_of(const at::Tensor& stepped) const;
  void exchange_gradients();

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<const c10::TensorImpl*, Kept> kept_;
  // The parameters that were stepped, in the optimizer's groups and with the settings of the step.
  std::vector<torch::optim::OptimizerParamGroup> groups_;
};

}  // namespace trireme::detail

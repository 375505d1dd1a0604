// SPDX-License-Identifier: Apache-2.0
// A step of an optimizer that can be taken back: keeps what the step changes, and what it was taken
// with.
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

/// Of an optimizer for which has_known_state. Thread-safety: none.
class OptimizerSnapshot {
 public:
  explicit OptimizerSnapshot(torch::optim::Optimizer& optimizer);
  OptimizerSnapshot(const OptimizerSnapshot&) = delete;
  OptimizerSnapshot& operator=(const OptimizerSnapshot&) = delete;
  ~OptimizerSnapshot();

  /// Copies what the optimizer is about to change, and steps it. Where it throws, so does this,
  /// with everything as before.
  void step();

  // After that, once:

  /// Forgets the step, which stays; copies keep their memory.
  void release();
  /// Gives parameters and state what they had before, bit for bit and in the same tensors, and
  /// forgets the step.
  void roll_back();
  /// The same, multiplies the gradients of the step by `factor`, and takes it again with the
  /// settings that the optimizer had.
  void step_again(double factor);

  /// Throws UsageError, and forgets the step, where something else has changed gradients,
  /// parameters or state since. Gradients may have been reset.
  void check_unchanged();

  /// Of the copies.
  std::int64_t bytes() const noexcept;

 private:
  // Of one tensor that the optimizer steps. Handles are empty but between step() and its end.
  struct Kept {
    at::Tensor stepped;
    at::Tensor gradient;
    std::int64_t stepped_version = 0;
    std::int64_t gradient_version = 0;
    bool had_state = false;
    const torch::optim::OptimizerParamState* state = nullptr;  // after the step
    std::int64_t count = 0;                                    // of steps
    std::array<at::Tensor, kMostStateTensors> fields;          // the state's own tensors
    bool is_listed = false;                                    // by the optimizer
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
  // What was stepped, in the optimizer's groups and with its settings.
  std::vector<torch::optim::OptimizerParamGroup> groups_;
};

}  // namespace trireme::detail

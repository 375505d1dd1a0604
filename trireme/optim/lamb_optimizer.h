// SPDX-License-Identifier: Apache-2.0
// The class of the optimizer that lamb() returns, in the form of LibTorch's optimizers, for code
// that saves and restores its state.
#pragma once

#include <trireme/optim/lamb.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::detail {

/// The options of a group.
struct LambGroupOptions : torch::optim::OptimizerOptions {
  LambOptions values;  ///< the parameters of LAMB
  bool adapts = true;  ///< see LambGroup

  std::unique_ptr<OptimizerOptions> clone() const override {
    return std::make_unique<LambGroupOptions>(*this);
  }
  double get_lr() const override { return values.learning_rate; }
  void set_lr(const double rate) override { values.learning_rate = rate; }
};

/// The state of a parameter.
struct LambParamState : torch::optim::OptimizerCloneableParamState<LambParamState> {
  std::int64_t step = 0;  ///< the number of steps
  at::Tensor exp_avg;     ///< the mean of gradients
  at::Tensor exp_avg_sq;  ///< the mean of their squares
};

/// LAMB. Not thread-safe.
class Lamb final : public torch::optim::Optimizer {
 public:
  /// Takes groups that lamb() has checked.
  explicit Lamb(std::vector<LambGroup> groups);

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  void step_parameter(at::Tensor& parameter, const LambGroupOptions& options);
};

}  // namespace trireme::detail

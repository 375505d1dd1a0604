// SPDX-License-Identifier: Apache-2.0
// A callback from functions, for what is too small to deserve a class.
#pragma once

#include <trireme/train/callback.h>

#include <functional>
#include <string>
#include <utility>

namespace trireme {

/// Calls the functions it is given; those left out do nothing.
///
///     trireme::LambdaCallback schedule({.step_begin = [&](const trireme::StepContext& step) {
///       set_learning_rate(optimizer, 0.1 / step.epoch);
///     }});
class LambdaCallback final : public Callback {
 public:
  struct Hooks {
    std::function<void(const RunContext&)> run_begin{};
    std::function<void(const EpochContext&)> epoch_begin{};
    std::function<void(const StepContext&)> step_begin{};
    std::function<void(const StepContext&)> backward_end{};
    std::function<void(const StepEndContext&)> step_end{};
    std::function<void(const EvaluationContext&)> evaluation_begin{};
    std::function<void(const EvaluationEndContext&)> evaluation_end{};
    std::function<void(const EpochEndContext&)> epoch_end{};
    std::function<void(const CheckpointContext&)> checkpoint_begin{};
    std::function<void(const CheckpointEndContext&)> checkpoint_end{};
    std::function<void(const RunContext&)> run_end{};
    /// Must not throw.
    std::function<void(const FailureContext&)> failure{};
    /// For messages.
    std::string name{};
  };

  explicit LambdaCallback(Hooks hooks) : hooks_(std::move(hooks)) {}

  std::string name() const override { return hooks_.name.empty() ? Callback::name() : hooks_.name; }

  void on_run_begin(const RunContext& run) override { call(hooks_.run_begin, run); }
  void on_epoch_begin(const EpochContext& epoch) override { call(hooks_.epoch_begin, epoch); }
  void on_step_begin(const StepContext& step) override { call(hooks_.step_begin, step); }
  void on_backward_end(const StepContext& step) override { call(hooks_.backward_end, step); }
  void on_step_end(const StepEndContext& step) override { call(hooks_.step_end, step); }
  void on_evaluation_begin(const EvaluationContext& evaluation) override {
    call(hooks_.evaluation_begin, evaluation);
  }
  void on_evaluation_end(const EvaluationEndContext& evaluation) override {
    call(hooks_.evaluation_end, evaluation);
  }
  void on_epoch_end(const EpochEndContext& epoch) override { call(hooks_.epoch_end, epoch); }
  void on_checkpoint_begin(const CheckpointContext& checkpoint) override {
    call(hooks_.checkpoint_begin, checkpoint);
  }
  void on_checkpoint_end(const CheckpointEndContext& checkpoint) override {
    call(hooks_.checkpoint_end, checkpoint);
  }
  void on_run_end(const RunContext& run) override { call(hooks_.run_end, run); }
  void on_failure(const FailureContext& failure) noexcept override {
    call(hooks_.failure, failure);
  }

 private:
  template <typename Context>
  static void call(const std::function<void(const Context&)>& hook, const Context& context) {
    if (hook) hook(context);
  }

  Hooks hooks_;
};

}  // namespace trireme

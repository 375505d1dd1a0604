// SPDX-License-Identifier: Apache-2.0
// LambdaCallback: a callback made of functions, for tasks that need no class of their own.
#pragma once

#include <trireme/train/callback.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace trireme {

namespace detail {

/// Holds a function of the context of its hook, or none. The constructor accepts any type, so that
/// the compiler reports what is wrong with the function instead of "no matching constructor".
template <typename Context>
class Hook {
 public:
  Hook() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): no function, as for std::function
  Hook(std::nullptr_t /*none*/) {}
  template <typename Function>
    requires(!std::same_as<std::remove_cvref_t<Function>, Hook>)
  // NOLINTNEXTLINE(google-explicit-constructor): a function where one is expected
  Hook(Function&& function) : function_(std::forward<Function>(function)) {
    static_assert(std::invocable<Function&, const Context&>,
                  "a hook of LambdaCallback is a function of its context: step_end takes a "
                  "const StepEndContext&, epoch_end a const EpochEndContext&, run_begin a const "
                  "RunContext&, ... (trireme/train/callback.h)");
  }

  void operator()(const Context& context) const {
    if (function_) function_(context);
  }

 private:
  std::function<void(const Context&)> function_;
};

/// Takes the place of a field with the name that a hook has in Callback. Setting it is a
/// compile-time error that tells the right name.
struct NotAHook {
  NotAHook() = default;
  template <typename Function>
    requires(!std::same_as<std::remove_cvref_t<Function>, NotAHook>)
  // NOLINTNEXTLINE(google-explicit-constructor): see above
  NotAHook(Function&& /*function*/) {
    static_assert(
        sizeof(Function) == 0,
        "fields of LambdaCallback are named without on_: .step_end, .epoch_end, .run_begin");
  }
};

}  // namespace detail

/// Calls the functions that it is given. A hook without a function does nothing.
///
///     trireme::LambdaCallback schedule({.step_begin = [&](const trireme::StepContext& step) {
///       set_learning_rate(optimizer, 0.1 / step.epoch);
///     }});
class LambdaCallback final : public Callback {
 public:
  /// The functions, each named like its hook in Callback without `on_`.
  struct Hooks {
    detail::Hook<RunContext> run_begin{};                 ///< Callback::on_run_begin
    detail::Hook<EpochContext> epoch_begin{};             ///< Callback::on_epoch_begin
    detail::Hook<StepContext> step_begin{};               ///< Callback::on_step_begin
    detail::Hook<StepContext> backward_end{};             ///< Callback::on_backward_end
    detail::Hook<StepEndContext> step_end{};              ///< Callback::on_step_end
    detail::Hook<EvaluationContext> evaluation_begin{};   ///< Callback::on_evaluation_begin
    detail::Hook<EvaluationEndContext> evaluation_end{};  ///< Callback::on_evaluation_end
    detail::Hook<EpochEndContext> epoch_end{};            ///< Callback::on_epoch_end
    detail::Hook<CheckpointContext> checkpoint_begin{};   ///< Callback::on_checkpoint_begin
    detail::Hook<CheckpointEndContext> checkpoint_end{};  ///< Callback::on_checkpoint_end
    detail::Hook<RunContext> run_end{};                   ///< Callback::on_run_end
    /// Callback::on_failure. Must not throw.
    detail::Hook<FailureContext> failure{};
    /// The name of this callback in messages; empty: the name of its type.
    std::string name{};

    /// @cond
    // The names of the hooks in Callback. Setting one of these fields is a compile-time error.
    detail::NotAHook on_run_begin{}, on_epoch_begin{}, on_step_begin{}, on_backward_end{},
        on_step_end{}, on_evaluation_begin{}, on_evaluation_end{}, on_epoch_end{},
        on_checkpoint_begin{}, on_checkpoint_end{}, on_run_end{}, on_failure{};
    /// @endcond
  };

  /// Takes the functions.
  explicit LambdaCallback(Hooks hooks) : hooks_(std::move(hooks)) {}

  std::string name() const override { return hooks_.name.empty() ? Callback::name() : hooks_.name; }

  void on_run_begin(const RunContext& run) override { hooks_.run_begin(run); }
  void on_epoch_begin(const EpochContext& epoch) override { hooks_.epoch_begin(epoch); }
  void on_step_begin(const StepContext& step) override { hooks_.step_begin(step); }
  void on_backward_end(const StepContext& step) override { hooks_.backward_end(step); }
  void on_step_end(const StepEndContext& step) override { hooks_.step_end(step); }
  void on_evaluation_begin(const EvaluationContext& evaluation) override {
    hooks_.evaluation_begin(evaluation);
  }
  void on_evaluation_end(const EvaluationEndContext& evaluation) override {
    hooks_.evaluation_end(evaluation);
  }
  void on_epoch_end(const EpochEndContext& epoch) override { hooks_.epoch_end(epoch); }
  void on_checkpoint_begin(const CheckpointContext& checkpoint) override {
    hooks_.checkpoint_begin(checkpoint);
  }
  void on_checkpoint_end(const CheckpointEndContext& checkpoint) override {
    hooks_.checkpoint_end(checkpoint);
  }
  void on_run_end(const RunContext& run) override { hooks_.run_end(run); }
  void on_failure(const FailureContext& failure) noexcept override { hooks_.failure(failure); }

 private:
  Hooks hooks_;
};

}  // namespace trireme

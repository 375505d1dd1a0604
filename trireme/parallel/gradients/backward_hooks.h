// SPDX-License-Identifier: Apache-2.0
// Sums gradients over ranks while backward runs, by hooks that autograd calls when a gradient is
// complete:
//
//   backward:   layer 9   layer 8   layer 7   …   layer 0 | end of backward
//   hooks:      copy into bucket 0 ─┐  bucket 1 ─┐        |
//   engine:                         all-reduce 0 │ …      | wait, divide once, .grad = slices
//
// reducer.h defines what is exchanged and in which order, this file when.
#pragma once

#include <trireme/parallel/gradients/reducer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::detail {

/// Runs a step of a Reducer for every `micro_batches` backward passes, by hooks that it installs on
/// the parameters while it lives. Autograd may call the hooks on several threads. The other
/// methods are for one thread at a time.
class BackwardHooks {
 public:
  /// @param reducer outlives this object, which alone runs its steps.
  /// @param micro_batches number of backward passes in a step.
  /// @param check_module called at the beginning of each pass; may throw.
  BackwardHooks(Reducer& reducer, std::int64_t micro_batches, std::function<void()> check_module);
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;
  ~BackwardHooks();

  /// See the function of this name in Parallelized.
  double seconds_of_exchange() const { return exchanges_.last_step; }

  /// Gives up a step that an exception interrupted.
  /// @param others_take_part true if other ranks ran forward or the exchange of the step and have
  ///     gone on without this rank. Later steps then throw UsageError.
  void abandon_step(bool others_take_part);
  /// Starts or ends a time in which backward passes only accumulate. Calls may be nested.
  void hold_back(bool on);
  /// Takes part in a step without a backward pass of its own. Returns true if any rank had one.
  /// Collective and blocking.
  bool join_step();
  /// Takes part in the rest of a step whose last backward pass is missing or failed with an
  /// exception. Gradients that were not sent yet count as zeros. Collective and blocking.
  void finish_without_backward();

 private:
  class Hook;

  void on_gradient(std::size_t parameter);
  void begin_pass();
  void end_pass();
  void finish();
  /// Adds the time that `call` takes to that of this step's exchanges.
  template <typename Call>
  void take_time(const Call& call);
  /// Returns true if the running pass ends the step.
  bool is_last_pass() const { return !is_held_back_ && pass_ + 1 >= micro_batches_; }

  Reducer& reducer_;
  const std::int64_t micro_batches_;
  std::function<void()> check_module_;
  // Hooks of sharded parameters that are called before accumulation, by number.
  std::vector<std::pair<at::Tensor, unsigned>> early_hooks_;
  struct {
    double last_step = 0;
    double this_step = 0;
  } exchanges_;  // seconds

  std::mutex mutex_;       // hooks are called by one thread of autograd for each device
  int pass_id_ = kNoPass;  // autograd's id of the running backward pass
  std::int64_t pass_ = 0;  // number of backward passes of this step that have ended
  int num_holding_back_ = 0;
  bool is_held_back_ = false;  // the running pass only accumulates
  bool is_broken_ = false;     // this rank is permanently out of step with the others
  static constexpr int kNoPass = -1;
};

}  // namespace trireme::detail

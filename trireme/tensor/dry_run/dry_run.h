// SPDX-License-Identifier: Apache-2.0
// DryRun: decides and records the operators that a thread calls, without running them.
//
// The dry run sees an operator between autograd and its kernel (interception.h). Forward and
// backward therefore take the same way as in a real run, and a real run costs nothing more.
#pragma once

#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dry_run/dry_run_record.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::tensor {

class CallTrace;  // call_trace.h

/// Records the calls of this thread on distributed tensors while it lives, including the backward
/// passes that the thread starts. Needs no ranks: meshes may be unconnected. It must be used on the
/// thread that made it. A second dry run of the same thread replaces the first until it is
/// destroyed.
class DryRun {
 public:
  /// What happens to recorded operators.
  enum class Mode {
    /// Nothing runs and nothing is communicated. Results are distributed tensors of the right shape
    /// and layout whose local tensors are meta tensors. Operators on plain tensors alone do run.
    kInstead,
    /// Everything runs as well, so that tests can compare the records with what happened.
    kBeside,
  };

  /// A function called after every call with its record. `results` is empty for a redistribution
  /// that the code asked for.
  using AfterEach = std::function<void(const DryRunCall&, c10::ArrayRef<c10::IValue> results)>;

  /// A function called before an operator is refused because it needs values.
  using BeforeRefusal = std::function<void()>;

  /// @param mode what happens to recorded operators.
  /// @param after_each function called after every call; may be empty.
  explicit DryRun(Mode mode = Mode::kInstead, AfterEach after_each = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  /// Returns the dry run of this thread; null if there is none.
  static DryRun* of_thread() noexcept;

  /// Returns what happens to recorded operators.
  Mode mode() const noexcept;

  /// Sets a function that is called before the dry run throws UsageError for an operator that needs
  /// values, such as item(). It may end the process.
  void before_refusal(BeforeRefusal call);

  /// Also keeps each recorded call so that it can be decided again for other placements along an
  /// axis of its mesh (calls_along_axis()).
  void keep_calls_along(int axis);

  /// Returns the calls that were kept, as many as calls() or none. Calls that are alike share an
  /// entry. The entry of a redistribution that the code asked for is null.
  const std::vector<std::shared_ptr<const CallAlongAxis>>& calls_along_axis() const noexcept;

  /// Also adds each call to a trace, which must outlive the dry run. Only with kInstead.
  void trace_calls(CallTrace* trace);

  /// Sets the name that records use for a distributed tensor of the dry run and for its views.
  void give_name(const at::Tensor& tensor, std::string name);

  /// Returns the records in the order of the calls.
  const std::vector<DryRunCall>& calls() const noexcept;
  /// Returns the records without a copy, and leaves none.
  std::vector<DryRunCall> take_calls() noexcept;

  /// Describes a distributed tensor as an input of a later call: its name and the call that made
  /// it.
  DryRunTensor describe(const at::Tensor& tensor) const;

  /// Returns this rank's part of `tensor` in `layout`, and records the redistribution. With
  /// kInstead the part is a meta tensor. `what` names the function that asked for it. Throws
  /// UsageError as Redistribution.
  at::Tensor moved(const at::Tensor& tensor, const Layout& layout, std::string_view what);

  /// Records the call on the stack and leaves its results there; returns false, having done
  /// nothing, if it has no distributed tensors. With kInstead throws UsageError where the operator
  /// returns a value, or a tensor whose shape depends on values. Throws also what the call itself
  /// would throw.
  bool take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
// DryRun: the operators of a thread are decided and recorded, and do not run.
//
// Operators come to it between autograd and the kernels that run them (interception.h). So a
// forward and backward go their usual way, and what runs otherwise costs nothing more.
#pragma once

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

/// As long as it lives, calls of this thread, and of the backward passes it starts, that take
/// distributed tensors are recorded. Needs no ranks: meshes may be unconnected. Of one thread; a
/// second one of the same thread takes over until it goes.
class DryRun {
 public:
  enum class Mode {
    /// Nothing runs and nothing is communicated: results are distributed tensors of the right
    /// shape and layout whose parts are meta tensors. Operators on plain tensors alone do run.
    kInstead,
    /// Everything runs, and each record says what was to be expected: for tests of the former.
    kBeside,
  };

  /// @param after_each called after every call, with its record and, beside, what it gave.
  using AfterEach = std::function<void(const DryRunCall&, c10::ArrayRef<c10::IValue> results)>;

  explicit DryRun(Mode mode = Mode::kInstead, AfterEach after_each = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;
  DryRun(DryRun&&) = delete;
  DryRun& operator=(DryRun&&) = delete;

  /// Of this thread; null where there is none.
  static DryRun* of_thread() noexcept;

  Mode mode() const noexcept;

  /// What records call a distributed tensor of the dry run, and views of it.
  void give_name(const at::Tensor& tensor, std::string name);

  /// In the order in which they were made.
  const std::vector<DryRunCall>& calls() const noexcept;

  /// A distributed tensor as an input of what is yet to come: its name, and the call that made it.
  DryRunTensor describe(const at::Tensor& tensor) const;

  /// This rank's part of `tensor` in `layout`: redistributed, or in its place a meta tensor. `what`
  /// asked for it. Throws UsageError as Redistribution.
  at::Tensor moved(const at::Tensor& tensor, const Layout& layout, std::string_view what);

  /// Takes the call on the stack, if it has distributed tensors. Throws UsageError where it gives a
  /// value, or a shape that depends on values, and nothing runs; and as the call itself would.
  bool take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace trireme::tensor

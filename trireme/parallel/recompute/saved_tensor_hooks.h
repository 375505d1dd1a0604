// SPDX-License-Identifier: Apache-2.0
// Passes the tensors that autograd saves on a thread through hooks, as Python's
// saved_tensors_hooks does.
//
// LibTorch asks its default engine for hooks for every tensor that it saves, and the engine of C++
// programs has none. This file installs an engine that has hooks and delegates all other work.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>

namespace trireme::detail {

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// Returns hooks for one tensor that is about to be saved; null to save it as usual.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  /// Returns hooks for a copy of memory that a recomputed function writes to; null to keep the
  /// copy.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_copy() { return nullptr; }
  /// Returns true during a second run, whose graph is dropped at its end.
  virtual bool is_second_run() const { return false; }
};

/// Returns the hooks for a copy from the innermost SavedTensorHooks of this thread that returns
/// some; null if none does.
std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_copy();

/// Returns is_second_run() of this thread's innermost SavedTensorHooks; false if there is none.
bool is_second_run();

/// Passes all tensors that are saved on this thread through `saved_hooks` while it lives. Outer
/// guards are inactive meanwhile. Throws UsageError if another library has replaced LibTorch's
/// engine.
class SavedTensorHooksGuard {
 public:
  explicit SavedTensorHooksGuard(SavedTensorHooks& saved_hooks);
  SavedTensorHooksGuard(const SavedTensorHooksGuard&) = delete;
  SavedTensorHooksGuard& operator=(const SavedTensorHooksGuard&) = delete;
  ~SavedTensorHooksGuard();

  SavedTensorHooks& saved_hooks() const noexcept { return saved_hooks_; }
  const SavedTensorHooksGuard* outer() const noexcept { return outer_; }

 private:
  SavedTensorHooks& saved_hooks_;
  const SavedTensorHooksGuard* outer_;
};

/// Remembers the version counter of a tensor at the time when autograd saved it, without keeping
/// its memory alive. LibTorch compares versions by itself, but not for tensors that are saved
/// through hooks.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()) {
    if (counter_.enabled()) value_ = counter_.current_version();
  }
  /// Returns true if the tensor was not written to since.
  bool is_current() const { return !counter_.enabled() || counter_.current_version() == value_; }

 private:
  c10::VariableVersion counter_;
  std::uint32_t value_ = 0;
};

}  // namespace trireme::detail

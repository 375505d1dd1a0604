// SPDX-License-Identifier: Apache-2.0
// Has the tensors that autograd saves on a thread go through hooks of ours, as Python's
// saved_tensors_hooks does.
//
// LibTorch asks its default engine for the hooks of every tensor that it saves, and the engine of
// C++ programs has none. The one here has, and leaves all other work to that one.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trireme::detail {

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// For one tensor that is about to be saved; null: it is kept as it is.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  /// For a copy of memory that a recomputed function writes to; null: it is kept as it is.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_copy() { return nullptr; }
  /// Whether what runs now has run before, so that its graph is dropped when it is over.
  virtual bool is_second_run() const { return false; }
};

/// Of the innermost SavedTensorHooks of this thread that has some; null where none has.
std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_copy();

/// Of this thread's SavedTensorHooks; false where there is none.
bool is_second_run();

/// As long as it lives, what is saved on this thread goes through `saved_hooks` alone. Throws
/// UsageError where another library has replaced LibTorch's engine.
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

}  // namespace trireme::detail

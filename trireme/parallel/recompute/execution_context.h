// SPDX-License-Identifier: Apache-2.0
// State outside of tensors that a run of a function depends on: grad mode, autocast and other modes
// of the thread, and the training flags of modules.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trireme::detail {

/// A snapshot of the state of this thread and of modules.
class ExecutionContext {
 public:
  /// Takes a snapshot now, with the training flags of `modules` and all their submodules.
  explicit ExecutionContext(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  class Restored;

 private:
  // Applies the snapshot to this thread and to the modules.
  void restore() const;

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState autograd_;
  std::vector<std::pair<c10::DeviceType, c10::ScalarType>> autocast_dtypes_;
  bool caches_casts_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;  // parents first
};

/// Applies a snapshot while it lives, and restores the state before it at the end. The cache of
/// autocast is off meanwhile, because cached casts would outlive the graph that they belong to.
class ExecutionContext::Restored {
 public:
  explicit Restored(const ExecutionContext& context);
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored();

 private:
  ExecutionContext outer_;
};

}  // namespace trireme::detail

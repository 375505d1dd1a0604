// SPDX-License-Identifier: Apache-2.0
// What a run of a function finds on its thread and in modules besides tensors: grad mode, autocast,
// LibTorch's other modes, training flags.
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

class ExecutionContext {
 public:
  /// As they are now; of the modules, with all below them, the training flags.
  explicit ExecutionContext(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  class Restored;

 private:
  // Makes it so on this thread, and in the modules.
  void restore() const;

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState autograd_;
  std::vector<std::pair<c10::DeviceType, c10::ScalarType>> autocast_dtypes_;
  bool caches_casts_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;  // parents first
};

/// As long as it lives, they are again as they were. Casts are not cached meanwhile: the cache
/// would outlive the graph that it belongs to.
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

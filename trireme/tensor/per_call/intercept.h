// SPDX-License-Identifier: Apache-2.0
// Redistributes the inputs of operators before they are called, by a kernel above autograd. The
// operators of a thread pass it while a strategy is pending or data parallelism is the default.
// Other threads never pass it.
#pragma once

#include <trireme/tensor/operator_strategy.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace trireme::tensor {

/// A strategy for the next operator of this thread. It is made and destroyed on this thread, and
/// nested objects are destroyed innermost first.
class PendingStrategy {
 public:
  /// Makes `strategy` pending on this thread, instead of an outer one.
  explicit PendingStrategy(OperatorStrategy strategy);
  ~PendingStrategy();
  PendingStrategy(const PendingStrategy&) = delete;
  PendingStrategy& operator=(const PendingStrategy&) = delete;

  const OperatorStrategy& strategy() const noexcept { return strategy_; }

  /// True once an operator was given the strategy.
  bool is_taken = false;
  bool has_seen_plain = false;  ///< an operator was called whose tensors were all plain

 private:
  OperatorStrategy strategy_;
  PendingStrategy* outer_;
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

/// Makes operators of this thread without a strategy data parallel while it lives.
class BatchSharding {
 public:
  BatchSharding();
  ~BatchSharding();
  BatchSharding(const BatchSharding&) = delete;
  BatchSharding& operator=(const BatchSharding&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

}  // namespace trireme::tensor

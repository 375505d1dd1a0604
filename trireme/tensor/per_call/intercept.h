// SPDX-License-Identifier: Apache-2.0
// Lays out the inputs of operators before they are called: a kernel above autograd that this
// thread's operators pass while a strategy waits or data is cut by default. Other threads, and all
// threads at other times, have none of it.
#pragma once

#include <trireme/tensor/operator_strategy.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace trireme::tensor {

/// A strategy for the next operator of this thread; made and destroyed there, innermost first.
class PendingStrategy {
 public:
  explicit PendingStrategy(OperatorStrategy strategy);
  ~PendingStrategy();
  PendingStrategy(const PendingStrategy&) = delete;
  PendingStrategy& operator=(const PendingStrategy&) = delete;
  PendingStrategy(PendingStrategy&&) = delete;
  PendingStrategy& operator=(PendingStrategy&&) = delete;

  const OperatorStrategy& strategy() const noexcept { return strategy_; }

  bool is_taken = false;
  bool has_seen_plain = false;  ///< an operator whose tensors were all plain

 private:
  OperatorStrategy strategy_;
  PendingStrategy* outer_;
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

/// Cuts the data of operators without a strategy; on the thread that made it.
class BatchSharding {
 public:
  BatchSharding();
  ~BatchSharding();
  BatchSharding(const BatchSharding&) = delete;
  BatchSharding& operator=(const BatchSharding&) = delete;
  BatchSharding(BatchSharding&&) = delete;
  BatchSharding& operator=(BatchSharding&&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

}  // namespace trireme::tensor

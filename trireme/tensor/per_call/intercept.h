// SPDX-License-Identifier: Apache-2.0
// Lays out the inputs of operators before they are called: a kernel above autograd that this
// thread's operators pass while a strategy waits or data is cut by default. Other threads, and all
// threads at other times, have none of it.
#pragma once

#include <trireme/tensor/operator_strategy.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace trireme::tensor {

/// A strategy for the next operator of this thread; made and destroyed there, innermost first.
class WaitingStrategy {
 public:
  explicit WaitingStrategy(OperatorStrategy strategy);
  ~WaitingStrategy();
  WaitingStrategy(const WaitingStrategy&) = delete;
  WaitingStrategy& operator=(const WaitingStrategy&) = delete;
  WaitingStrategy(WaitingStrategy&&) = delete;
  WaitingStrategy& operator=(WaitingStrategy&&) = delete;

  const OperatorStrategy& strategy() const noexcept { return strategy_; }

  bool is_taken = false;
  bool has_met_plain = false;  ///< an operator whose tensors were all plain

 private:
  OperatorStrategy strategy_;
  WaitingStrategy* outer_;
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

/// Cuts the data of operators without a strategy; on the thread that made it.
class BatchCutting {
 public:
  BatchCutting();
  ~BatchCutting();
  BatchCutting(const BatchCutting&) = delete;
  BatchCutting& operator=(const BatchCutting&) = delete;
  BatchCutting(BatchCutting&&) = delete;
  BatchCutting& operator=(BatchCutting&&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard intercepted_;
};

}  // namespace trireme::tensor

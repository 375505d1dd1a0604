// SPDX-License-Identifier: Apache-2.0
// The boxed kernel of every operator on distributed tensors.
#pragma once

#include <trireme/tensor/dispatch/operator_facts.h>

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>

namespace trireme::tensor {

/// Runs a call whose arguments are on the stack: replaces them by local tensors, calls the
/// operator, and leaves the wrapped results on the stack.
void run(const OperatorFacts& facts, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// The kernel object of one operator, registered with the dispatcher.
class DistributedKernel final : public c10::OperatorKernel {
 public:
  explicit DistributedKernel(OperatorFacts facts) : facts_(std::move(facts)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    run(facts_, op, *stack);
  }

  /// The facts of the operator. They must not be changed while operators run.
  OperatorFacts& facts() noexcept { return facts_; }

 private:
  OperatorFacts facts_;
};

/// Registers a kernel with LibTorch's dispatcher for every operator of every library, except
/// composite operators that LibTorch decomposes. It runs when the first distributed tensor is made.
/// Call it again after loading another library to add its operators. Thread-safe. Returns the
/// number of kernels added.
int install();

}  // namespace trireme::tensor

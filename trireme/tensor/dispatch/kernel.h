// SPDX-License-Identifier: Apache-2.0
// The boxed kernel that every operator has on distributed tensors.
#pragma once

#include <trireme/tensor/dispatch/operator_facts.h>

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>

namespace trireme::tensor {

/// Runs a call whose arguments are on the stack: local arguments in, wrapped results out.
void run(const OperatorFacts& facts, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// One per operator, registered with the dispatcher.
class DistributedKernel final : public c10::OperatorKernel {
 public:
  explicit DistributedKernel(OperatorFacts facts) : facts_(std::move(facts)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    run(facts_, op, *stack);
  }

  /// Not to be changed while operators run.
  OperatorFacts& facts() noexcept { return facts_; }

 private:
  OperatorFacts facts_;
};

/// Makes the kernels known to LibTorch's dispatcher: for every operator of every library but the
/// composite ones that autograd takes apart. Called by whatever makes the first distributed tensor;
/// again after other libraries were loaded, it adds what is new. Thread-safe. Returns how many it
/// added.
int install();

}  // namespace trireme::tensor

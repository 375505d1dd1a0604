// SPDX-License-Identifier: Apache-2.0
// Makes the results of calls that do not run: distributed tensors whose local tensors are meta.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <ATen/core/stack.h>

#include <vector>

namespace trireme::tensor {

/// What a call would return.
struct Prediction {
  /// Every returned tensor as a meta tensor of the global shape, lists element by element. An
  /// undefined tensor stands for one that is not returned.
  std::vector<at::Tensor> outputs;
  /// The decision for the call; null if all inputs are replicated, and so are the results.
  std::unique_ptr<Decision> decision;
  /// The layout of the results if there is no decision.
  Layout replicated;
  /// The result is a copy that stands for a view.
  bool is_copy_of_view = false;
  /// The layouts of operators that use the results as their weight, if they are views of one.
  const PlannedLayouts* as_weight = nullptr;
  /// Results that are not tensors.
  std::vector<c10::IValue> values;

  const Layout& layout(std::size_t output) const;
  /// Returns true if a written argument is redistributed for the call, and back after it. It keeps
  /// its layout and shape.
  bool is_redistributed_back(int argument) const;
};

/// Returns a meta tensor of the sizes that the rank at coordinate_here() holds of `global`. Its
/// dims are nested in memory as those of `global`.
at::Tensor meta_part(const at::Tensor& global, const Layout& layout);

/// Replaces the arguments on the stack by the results of the call, and updates the tensors that it
/// writes to. Returns the tensors that are new or were changed.
std::vector<at::Tensor> give_results(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                                     torch::jit::Stack& stack, const Prediction& prediction);

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
// Results of calls that do not run: distributed tensors whose parts are meta tensors.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace trireme::tensor {

/// What a call gives.
struct Prediction {
  /// Every returned tensor, lists element by element, as meta tensors of the global shape;
  /// undefined ones where nothing is returned.
  std::vector<at::Tensor> outputs;
  /// Null: all tensors are replicated, and so are the results.
  std::unique_ptr<Decision> decision;
  Layout replicated;
  bool is_copy_of_view = false;
  /// Results that are no tensors.
  std::vector<c10::IValue> values;

  const Layout& layout(std::size_t output) const;
  /// Whether a written argument was redistributed for the call, and keeps layout and shape.
  bool is_redistributed_back(int argument) const;
};

/// A meta tensor of the size that the rank at `coordinate_here` has of `global`, dims nested as
/// there.
at::Tensor meta_part(const at::Tensor& global, const Layout& layout);

/// Replaces the arguments on the stack by what the call gives; tensors that it writes to follow.
/// Returns the tensors that are new.
std::vector<at::Tensor> give_results(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                                     torch::jit::Stack& stack, const Prediction& prediction);

}  // namespace trireme::tensor

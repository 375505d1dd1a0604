// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/rule_checks.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

constexpr const char* kHint =
    "fix the rule: one placement for every tensor among the arguments and none for numbers, one "
    "for every result or a single one for all (docs/guide/rules.md)";

std::string text_of(const Strategy& strategy) {
  const auto list = [](const auto& placements) {
    return "{" + list_text(placements, ", ", &Placement::to_string) + "}";
  };
  return list(strategy.inputs) + " -> " + list(strategy.outputs);
}

}  // namespace

void check_shapes(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                  const std::vector<at::Tensor>& shapes) {
  const auto& returns = schema.returns();
  const bool has_lists = std::ranges::any_of(returns, [](const c10::Argument& result) {
    return result.type()->kind() != c10::TypeKind::TensorType;
  });
  if (has_lists || shapes.empty() || shapes.size() == returns.size()) return;
  throw UsageError(join_message("the rule of operator ", facts.name, " gives the shapes of ",
                                shapes.size(), " results; the operator has ", returns.size()),
                   "fix its function `shapes`: one tensor for every result, undefined for one "
                   "that is not given, or none at all where only values say the shape");
}

void check_strategy(const OperatorFacts& facts, const Call& call, const Strategy& strategy,
                    std::size_t num_outputs) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(join_message("the rule of operator ", facts.name, " lists the strategy ",
                                  text_of(strategy), ", ", what),
                     kHint);
  };
  if (strategy.inputs.size() != static_cast<std::size_t>(call.num_inputs())) {
    refuse(join_message("which places ", strategy.inputs.size(), " inputs; the call has ",
                        call.num_inputs(), " tensors"));
  }
  if (num_outputs == 0) return;
  if (strategy.outputs.size() != 1 && strategy.outputs.size() != num_outputs) {
    refuse(join_message("which places ", strategy.outputs.size(), " results; the call has ",
                        num_outputs));
  }
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const Placement& placement = strategy.outputs[strategy.outputs.size() == 1 ? 0 : i];
    if (call.num_outputs() == 0) {
      if (!placement.is_replicate()) {
        refuse("but a result whose shape only values say is whole on every rank");
      }
      continue;
    }
    const at::Tensor& output = call.output(static_cast<int>(i));
    if (output.defined() && placement.is_shard() && placement.dim() >= output.dim()) {
      refuse(join_message("which cuts a dim that result ", i, " of shape ", output.sizes(),
                          " does not have"));
    }
  }
}

}  // namespace trireme::tensor

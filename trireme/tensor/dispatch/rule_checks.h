// SPDX-License-Identifier: Apache-2.0
// What a rule gives is looked at before it is used: rules are written by users too, and a mistake
// in one is told with the operator's name.
#pragma once

#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/rules/rule.h>

#include <cstddef>
#include <vector>

namespace trireme::tensor {

/// Throws UsageError unless `shapes` gave one tensor for every result, or none at all. Results that
/// are lists have as many as they like.
void check_shapes(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                  const std::vector<at::Tensor>& shapes);

/// Throws UsageError unless a strategy has one placement for every tensor among the arguments, and
/// one for every result or one for all, each of which the result's shape allows.
/// @param num_outputs of the call, where the shapes of its results are known or not.
void check_strategy(const OperatorFacts& facts, const Call& call, const Strategy& strategy,
                    std::size_t num_outputs);

}  // namespace trireme::tensor

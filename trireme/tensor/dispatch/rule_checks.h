// SPDX-License-Identifier: Apache-2.0
// Checks what a rule returns before it is used. Users write rules too, and a mistake in one is
// reported with the name of the operator.
#pragma once

#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/rules/rule.h>

#include <cstddef>
#include <vector>

namespace trireme::tensor {

/// Throws UsageError unless `shapes` has one tensor for every result, or none at all. An operator
/// that returns lists may have any number.
void check_shapes(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                  const std::vector<at::Tensor>& shapes);

/// Throws UsageError unless a strategy fits the call. It needs one placement for every tensor among
/// the arguments, and one for every result or one for all of them. Each placement of a result must
/// be possible for its shape.
/// @param num_outputs number of results, also where their shapes are not known.
void check_strategy(const OperatorFacts& facts, const Call& call, const Strategy& strategy,
                    std::size_t num_outputs);

}  // namespace trireme::tensor

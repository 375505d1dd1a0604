// SPDX-License-Identifier: Apache-2.0
// The work of a call that a dry run records.
#pragma once

#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/rules/rule.h>

namespace trireme::tensor {

/// Returns the floating-point operations of a whole call. Without a count in its rule, an operator
/// has one for each element that it reads or writes, and none if it only moves or sets numbers.
/// @param rule null if the operator has none.
double flops_of(const OperatorFacts& facts, const Rule* rule, const Call& call);

}  // namespace trireme::tensor

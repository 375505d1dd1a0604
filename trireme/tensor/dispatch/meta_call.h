// SPDX-License-Identifier: Apache-2.0
// Calls on meta tensors: how the shapes of results are found without computing them.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

namespace trireme::tensor {

/// The call with meta tensors of the global shapes in place of its tensors.
Call make_meta_call(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments);

/// Runs the operator's meta kernel and returns every tensor of its result, lists element by
/// element. Throws InternalError where LibTorch has none: the rule must give the shapes then.
/// Errors of the operator itself (shapes that do not fit) pass through as LibTorch says them.
std::vector<at::Tensor> outputs_on_meta(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                        const Call& call);

}  // namespace trireme::tensor

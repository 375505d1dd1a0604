// SPDX-License-Identifier: Apache-2.0
// Calls on meta tensors, which give the shapes of results without computing values.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

namespace trireme::tensor {

/// Returns the call with each tensor replaced by a meta tensor of its global shape.
Call make_meta_call(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments);

/// Runs the operator's meta kernel and returns every tensor of its result, lists element by
/// element. Throws InternalError where LibTorch has no meta kernel; the rule must give the shapes
/// in that case. Errors of the operator itself, such as shapes that do not match, are LibTorch's.
std::vector<at::Tensor> outputs_on_meta(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                        const Call& call);

}  // namespace trireme::tensor

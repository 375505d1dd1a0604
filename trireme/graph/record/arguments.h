// SPDX-License-Identifier: Apache-2.0
// Functions on the arguments of an operator for recording.
#pragma once

#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <vector>

namespace trireme::graph::detail {

using tensor::visit_tensors;

/// Returns a value with None or an empty list in place of its tensors.
c10::IValue without_tensors(const c10::IValue& value);

/// Returns the positions of arguments that are written to. Norms in training write to their running
/// statistics, although their schemas do not declare it.
std::vector<std::size_t> arguments_written(const c10::FunctionSchema& schema,
                                           const std::vector<c10::IValue>& given);

/// Returns true if the operator writes to its first argument or to out= without reading what is
/// there.
bool overwrites(const c10::OperatorHandle& op);

/// Returns true if the operator returns a tensor or a list of tensors.
bool returns_tensors(const c10::FunctionSchema& schema);

/// Returns the argument that results may be views of, according to the schema; null if there is
/// none. Null also for composite operators: the tensors that they return say themselves what they
/// view.
const c10::IValue* viewed(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

}  // namespace trireme::graph::detail

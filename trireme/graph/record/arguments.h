// SPDX-License-Identifier: Apache-2.0
// What the arguments of an operator are to a record.
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

/// None and empty lists in the places of tensors.
c10::IValue without_tensors(const c10::IValue& value);

/// The positions of arguments that are written to. Norms in training write to their running
/// statistics, which their schemas do not say.
std::vector<std::size_t> arguments_written(const c10::FunctionSchema& schema,
                                           const std::vector<c10::IValue>& given);

/// Whether it gives its first argument values, or those given as out=, without reading what is
/// there.
bool overwrites(const c10::OperatorHandle& op);

bool returns_tensors(const c10::FunctionSchema& schema);

/// The argument that results may be views of, where the schema says so and the operator is not made
/// of others, whose results say it of themselves; else null.
const c10::IValue* viewed(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

}  // namespace trireme::graph::detail

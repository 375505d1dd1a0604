// SPDX-License-Identifier: Apache-2.0
// Visits the tensors in an argument or result of an operator: a tensor, a list of tensors, or a
// list of optional ones. Undefined tensors are visited too, and stand for what an optional one
// lacks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace trireme::tensor {

/// Calls `visit` with each tensor in `value`, in their order.
template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef()) {
      visit(item.isTensor() ? item.toTensor() : at::Tensor());
    }
  }
}

/// Returns `value` with `map` applied to each tensor in it; other values as they are.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    visit_tensors(value, [&](const at::Tensor& tensor) { list.push_back(map(tensor)); });
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    visit_tensors(value, [&](const at::Tensor& tensor) {
      at::Tensor mapped = map(tensor);
      list.push_back(mapped.defined() ? std::optional(std::move(mapped)) : std::nullopt);
    });
    return list;
  }
  return value;
}

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/value.h>

#include <trireme/base/error.h>
#include <trireme/data/transforms/elements.h>

#include <ATen/ops/empty.h>

#include <utility>

namespace trireme::data::detail {

Value value_of(at::Tensor tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu()) {
    throw UsageError("the result is not a dense CPU tensor", "return a dense tensor on the CPU");
  }
  tensor = tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {{tensor.scalar_type(), at::DimVector(tensor.sizes())}, data, std::move(tensor)};
}

at::Tensor tensor_of(const Value& value) {
  at::Tensor tensor = at::empty(value.form.sizes, value.form.dtype);
  copy_sample(value.form, value.data, static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace trireme::data::detail

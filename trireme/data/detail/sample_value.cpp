// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/sample_value.h>

#include <trireme/base/error.h>
#include <trireme/data/transforms/elements.h>

#include <ATen/ops/empty.h>

#include <utility>

namespace trireme::data::detail {

Value value_of(at::Tensor tensor, std::string_view what) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu()) {
    throw UsageError(join_message(what, " is not a dense CPU tensor"),
                     "a dense tensor on the CPU is needed");
  }
  // at::conj() and the negation of imaginary parts are lazy: they only set a flag. The elements
  // must be final because they are read as bytes.
  if (tensor.is_conj()) tensor = tensor.resolve_conj();
  if (tensor.is_neg()) tensor = tensor.resolve_neg();
  tensor = tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {{tensor.scalar_type(), at::DimVector(tensor.sizes())}, data, std::move(tensor)};
}

bool is_shared(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.use_count() > 1 || tensor.storage().use_count() > 1);
}

at::Tensor tensor_of(const Value& value) {
  at::Tensor tensor = at::empty(value.form.sizes, value.form.dtype);
  copy_sample(value.form, value.data, static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace trireme::data::detail

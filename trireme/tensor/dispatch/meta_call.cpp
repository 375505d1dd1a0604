// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/meta_call.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace trireme::tensor {
namespace {

at::Tensor on_meta(const at::Tensor& tensor) {
  // Keeps the strides, which rules and operators read; an offset needs memory that covers it.
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (tensor.storage_offset() != 0) {
    std::int64_t extent = tensor.storage_offset() + 1;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      extent += std::max<std::int64_t>(tensor.size(dim) - 1, 0) * tensor.stride(dim);
    }
    meta = at::empty({extent}, options)
               .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& all) {
  visit_tensors(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
}

c10::IValue argument_on_meta(const c10::IValue& value) {
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  return map_tensors(
      value, [](const at::Tensor& tensor) { return tensor.defined() ? on_meta(tensor) : tensor; });
}

bool is_pointwise(const OperatorFacts& facts) {
  return facts.rule != nullptr && std::string_view(facts.rule->family) == "pointwise";
}

// Returns a tensor of that dtype without elements; one number if it has no dims.
at::Tensor without_elements(const at::Tensor& meta) {
  const auto options = at::TensorOptions().dtype(meta.dtype()).device(at::kCPU);
  if (meta.dim() > 0) return at::empty({0}, options);
  at::Tensor number = at::zeros({}, options);
  if (meta.unsafeGetTensorImpl()->is_wrapped_number()) {
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return number;
}

bool is_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// Brings numbers back to the CPU, beside tensors on meta. Where Python is loaded, torch has
// replaced meta kernels by its own in Python, which read a number as a number of Python.
void put_numbers_on_cpu(torch::jit::Stack& stack) {
  const bool has_tensor = std::ranges::any_of(stack, [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && !is_number(value);
  });
  if (!has_tensor) return;
  for (c10::IValue& value : stack) {
    if (is_number(value)) value = without_elements(value.toTensor());
  }
}

// Returns the results of a pointwise operator. The dtype comes from a call without elements, the
// sizes from broadcasting, and the memory order from the first input of these sizes.
std::vector<at::Tensor> outputs_by_broadcasting(const c10::OperatorHandle& op, const Call& call) {
  torch::jit::Stack stack;
  for (const c10::IValue& value : call.arguments()) {
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    stack.push_back(is_tensor ? c10::IValue(without_elements(value.toTensor())) : value);
  }
  op.callBoxed(stack);
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& input : call.inputs()) sizes = at::infer_size(sizes, input.sizes());
  at::Tensor ordered = at::empty(sizes, at::TensorOptions().device(at::kMeta));
  for (const at::Tensor& input : call.inputs()) {
    if (input.sizes() != c10::IntArrayRef(sizes) || !input.is_non_overlapping_and_dense()) continue;
    ordered = input;
    break;
  }
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : stack) append_tensors(value, outputs);
  for (at::Tensor& output : outputs) {
    const auto options = at::TensorOptions().dtype(output.dtype()).device(at::kMeta);
    output = at::empty_strided(sizes, ordered.strides(), options);
  }
  return outputs;
}

}  // namespace

Call make_meta_call(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> on_meta_arguments;
  on_meta_arguments.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (facts.is_out[i] && arguments[i].isTensor()) {
      const at::Tensor& out = arguments[i].toTensor();
      on_meta_arguments.emplace_back(
          at::empty_strided({0}, {1}, at::TensorOptions().dtype(out.dtype()).device(at::kMeta)));
    } else {
      on_meta_arguments.push_back(argument_on_meta(arguments[i]));
    }
  }
  std::vector<at::Tensor> tensors;
  std::vector<int> argument_of_input;
  for (const InputSlot& input : inputs) {
    const c10::IValue& value = on_meta_arguments[static_cast<std::size_t>(input.argument)];
    tensors.push_back(input.element < 0
                          ? value.toTensor()
                          : value.toListRef()[static_cast<std::size_t>(input.element)].toTensor());
    argument_of_input.push_back(input.argument);
  }
  return Call(op.schema(), std::move(on_meta_arguments), std::move(tensors),
              std::move(argument_of_input));
}

std::vector<at::Tensor> outputs_on_meta(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                        const Call& call) {
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  // An operator that changes the shape of its argument in place must not change the call's input.
  if (call.is_in_place() && stack.front().isTensor()) {
    stack.front() = on_meta(stack.front().toTensor());
  }
  put_numbers_on_cpu(stack);
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError& error) {
    if (is_pointwise(facts)) return outputs_by_broadcasting(op, call);
    throw InternalError(join_message("operator ", facts.name,
                                     " has a rule without shapes, and LibTorch has no meta kernel "
                                     "for it: ",
                                     error.what_without_backtrace()),
                        "give the rule a function `shapes`; if it is one of Trireme's own, please "
                        "report it");
  } catch (c10::Error& error) {  // shapes or types that do not fit each other
    const std::string sizes = list_text(call.inputs(), ", ", [](const at::Tensor& input) {
      return join_message(input.scalar_type(), " ", input.sizes());
    });
    error.add_context(join_message("in operator ", facts.name, " on ", sizes));
    throw;
  }
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : stack) append_tensors(value, outputs);
  return outputs;
}

}  // namespace trireme::tensor

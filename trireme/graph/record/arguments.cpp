// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/arguments.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <string>

namespace trireme::graph::detail {

c10::IValue without_tensors(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return {};
  if (value.isTensorList()) return c10::List<at::Tensor>();
  if (value.isOptionalTensorList()) return c10::List<std::optional<at::Tensor>>();
  return value;
}

std::vector<std::size_t> arguments_written(const c10::FunctionSchema& schema,
                                           const std::vector<c10::IValue>& given) {
  std::vector<std::size_t> written;
  // Norms update running statistics in training only; their flag has one of three names.
  bool is_in_training = false;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    const bool is_flag = name == "training" || name == "train" || name == "use_input_stats";
    if (is_flag && given[i].isBool()) is_in_training = given[i].toBool();
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool is_statistic = is_in_training && arguments[i].name().starts_with("running_");
    if (is_statistic || (alias != nullptr && alias->isWrite())) written.push_back(i);
  }
  return written;
}

bool overwrites(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  // Such as normal_ and bernoulli_.
  const bool draws = name.ends_with('_') && op.hasTag(at::Tag::nondeterministic_seeded);
  return draws || name == "aten::fill_" || name == "aten::zero_" || name == "aten::copy_" ||
         std::ranges::any_of(op.schema().arguments(),
                             [](const c10::Argument& argument) { return argument.is_out(); });
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& returned) {
    return returned.type()->isSubtypeOf(*c10::TensorType::get()) ||
           returned.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

const c10::IValue* viewed(const c10::OperatorHandle& op,
                          const std::vector<c10::IValue>& arguments) {
  const auto& returns = op.schema().returns();
  const bool may_be_view =
      !returns.empty() && returns[0].alias_info() != nullptr && !returns[0].alias_info()->isWrite();
  const bool is_composite =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      op.operator_name().name != "aten::data";
  return may_be_view && !is_composite ? &arguments.front() : nullptr;
}

}  // namespace trireme::graph::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/operator_facts.h>

#include <trireme/tensor/rules/rule.h>

#include <ATen/core/jit_type.h>

#include <atomic>

namespace trireme::tensor {
namespace {

bool has_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::ListType:
      return has_tensors(type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::OptionalType:
      return has_tensors(type->castRaw<c10::OptionalType>()->getElementType());
    default:
      return false;
  }
}

bool is_number_without_shape(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::NumberType:  // Scalar
    case c10::TypeKind::FloatType:
    case c10::TypeKind::GeneratorType:
      return true;
    case c10::TypeKind::ListType:
      return is_number_without_shape(type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::OptionalType:
      return is_number_without_shape(type->castRaw<c10::OptionalType>()->getElementType());
    default:
      return false;
  }
}

int next_index() {
  static std::atomic<int> counter = 0;
  return counter.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

OperatorFacts::OperatorFacts(const c10::FunctionSchema& schema)
    : name(schema.overload_name().empty() ? schema.name()
                                          : schema.name() + "." + schema.overload_name()),
      index(next_index()),
      num_arguments(static_cast<std::uint32_t>(schema.arguments().size())),
      num_returns(static_cast<std::uint32_t>(schema.returns().size())) {
  const auto& arguments = schema.arguments();
  is_out.resize(arguments.size());
  is_in_key.resize(arguments.size());
  is_number.resize(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written) {
      written.push_back(static_cast<int>(i));
      is_out[i] = argument.is_out() || argument.kwarg_only();
      has_out = has_out || is_out[i];
    }
    is_number[i] = is_number_without_shape(argument.real_type());
    is_in_key[i] = !has_tensors(argument.type()) && !is_number[i];
    has_key_values = has_key_values || is_in_key[i];
  }
  // Operators that may return an input although their schema declares no view.
  may_return_input = !name.starts_with("aten::") || name.starts_with("aten::_unsafe_") ||
                     name.starts_with("aten::unsafe_") || name.starts_with("aten::lift") ||
                     name.starts_with("aten::_lazy_");
  counts_versions = name.starts_with("aten::_foreach_") && !written.empty() && !has_out;
  for (const c10::Argument& returned : schema.returns()) {
    int which = -1;
    if (const c10::AliasInfo* alias = returned.alias_info()) {
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        const c10::AliasInfo* alias_info = arguments[i].alias_info();
        if (alias_info == nullptr || alias_info->beforeSets() != alias->beforeSets()) continue;
        if (alias->isWrite()) {
          which = static_cast<int>(i);
        } else {
          returns_view = true;
          viewed = static_cast<int>(i);
        }
      }
    }
    return_is_argument.push_back(which);
  }
  hands_on_weight = returns_view || name == "aten::_to_copy";
}

void OperatorFacts::follow(const Rule* its_rule) {
  rule = its_rule;
  if (rule == nullptr || !rule->scalars_matter) return;
  for (std::size_t i = 0; i < is_number.size(); ++i) {
    is_in_key[i] = is_in_key[i] || is_number[i];
    has_key_values = has_key_values || is_in_key[i];
  }
}

}  // namespace trireme::tensor

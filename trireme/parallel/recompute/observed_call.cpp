// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/observed_call.h>

#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace trireme::detail {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

template <typename Visit>
void for_each_defined(const c10::IValue& value, const Visit& visit) {
  tensor::visit_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
  });
}

// Batch norm operators write running statistics that their schemas declare as read only.
bool is_running_statistic(const c10::FunctionSchema& schema, std::size_t index, Values values) {
  const std::string& argument = schema.arguments()[index].name();
  if (argument != "running_mean" && argument != "running_var") return false;
  if (schema.name().find("batch_norm") == std::string::npos) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "training" || name == "train") return values[i].isBool() && values[i].toBool();
  }
  return true;
}

bool is_written(const c10::FunctionSchema& schema, std::size_t index, Values values) {
  const c10::AliasInfo* const alias = schema.arguments()[index].alias_info();
  return (alias != nullptr && alias->isWrite()) || is_running_statistic(schema, index, values);
}

// Returns the generator that the operator draws random numbers from, if it draws any.
std::optional<at::Generator> stream_of(const c10::OperatorHandle& op, Values values) {
  const auto given = std::ranges::find_if(values, &c10::IValue::isGenerator);
  if (given != values.end()) return given->toGenerator();
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return std::nullopt;
  std::optional<at::Device> device;
  for (const c10::IValue& value : values) {
    if (!device && value.isDevice()) device = value.toDevice();
    for_each_defined(value, [&](const at::Tensor& tensor) {
      if (!device) device = tensor.device();
    });
  }
  if (!device || device->is_cpu() || device->is_meta()) {
    return at::detail::getDefaultCPUGenerator();
  }
  return at::globalContext().defaultGenerator(*device);
}

// A tensor and the one that the operator gets in its place.
struct Replacement {
  at::Tensor original;
  at::Tensor given;
};

class ObservedCall {
 public:
  ObservedCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  // Runs the operator. Returns false, having done nothing, if it was given distributed tensors: the
  // operators on their local parts are observed instead.
  bool run(c10::DispatchKeySet keys);

 private:
  Values arguments() const {
    const std::size_t count = op_.schema().arguments().size();
    return Values(stack_.data() + (stack_.size() - count), count);
  }
  void look();
  void tell_of_write(const at::Tensor& tensor) const;
  at::Tensor replaced(const at::Tensor& tensor);
  void replace_arguments();
  void finish();

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  bool has_distributed_ = false;
  bool has_gradient_ = false;  // it is in place, and an argument requires a gradient
  bool is_replaced_ = false;
  c10::SmallVector<const c10::StorageImpl*, 8> given_;
  c10::SmallVector<Replacement, 2> replacements_;
};

void ObservedCall::look() {
  const Values values = arguments();
  if (const auto generator = stream_of(op_, values)) {
    for (auto* each = innermost_observer(); each != nullptr; each = each->outer()) {
      each->before_draw(*generator);
    }
  }
  const bool is_in_place = op_.schema().name().ends_with('_') && c10::GradMode::is_enabled();
  for (const c10::IValue& value : values) {
    for_each_defined(value, [&](const at::Tensor& tensor) {
      has_distributed_ = has_distributed_ || tensor::is_wrapper(tensor);
      has_gradient_ = has_gradient_ || (is_in_place && tensor.requires_grad());
      if (!tensor.has_storage()) return;
      const auto* const storage = tensor.storage().unsafeGetStorageImpl();
      given_.push_back(storage);
      for (auto* each = innermost_observer(); each != nullptr; each = each->outer()) {
        is_replaced_ = is_replaced_ || each->instead_of(storage) != nullptr;
      }
    });
  }
}

// Tells observers up to the first that replaces the memory. Those outside of it see no write.
void ObservedCall::tell_of_write(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return;
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  Observer* last = innermost_observer();
  while (last != nullptr && last->instead_of(storage) == nullptr) last = last->outer();
  const at::Tensor seen = last == nullptr ? tensor : over(tensor, *last->instead_of(storage));
  const std::string_view name = op_.schema().name();
  for (auto* each = innermost_observer(); each != nullptr; each = each->outer()) {
    each->before_write({name, tensor, seen, has_gradient_});
    if (each == last) break;
  }
}

at::Tensor ObservedCall::replaced(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor;
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  for (auto* each = innermost_observer(); each != nullptr; each = each->outer()) {
    if (const c10::Storage* const memory = each->instead_of(storage)) {
      replacements_.push_back({tensor, over(tensor, *memory)});
      return replacements_.back().given;
    }
  }
  return tensor;
}

void ObservedCall::replace_arguments() {
  const std::size_t first = stack_.size() - op_.schema().arguments().size();
  for (std::size_t i = first; i < stack_.size(); ++i) {
    stack_[i] =
        tensor::map_tensors(stack_[i], [&](const at::Tensor& tensor) { return replaced(tensor); });
  }
}

void ObservedCall::finish() {
  const std::size_t first = stack_.size() - op_.schema().returns().size();
  for (std::size_t i = first; i < stack_.size(); ++i) {
    // In-place operators return their argument; callers must get the original back.
    if (is_replaced_) {
      stack_[i] = tensor::map_tensors(stack_[i], [&](const at::Tensor& tensor) {
        for (const auto& [original, given] : replacements_) {
          if (tensor.is_same(given)) return original;
        }
        return tensor;
      });
    }
    for_each_defined(stack_[i], [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      const auto* const storage = tensor.storage().unsafeGetStorageImpl();
      if (std::ranges::find(given_, storage) != given_.end()) return;  // in place, or a view
      for (auto* each = innermost_observer(); each != nullptr; each = each->outer()) {
        each->after_making(storage);
      }
    });
  }
}

bool ObservedCall::run(c10::DispatchKeySet keys) {
  look();
  if (has_distributed_) return false;
  const Values values = arguments();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_written(op_.schema(), i, values)) continue;
    for_each_defined(values[i], [&](const at::Tensor& tensor) { tell_of_write(tensor); });
  }
  if (is_replaced_) replace_arguments();
  {
    // Kernels may call other operators, which are not observed.
    const c10::impl::ExcludeDispatchKeyGuard aside(tensor::kBelowAutograd);
    constexpr auto kAfter = c10::DispatchKeySet::FULL_AFTER;
    op_.redispatchBoxed(keys & c10::DispatchKeySet(kAfter, tensor::kBelowAutograd), &stack_);
  }
  finish();
  return true;
}

bool observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  return innermost_observer() != nullptr && ObservedCall(op, *stack).run(keys);
}

}  // namespace

Observer*& innermost_observer() noexcept {
  thread_local Observer* innermost = nullptr;
  return innermost;
}

c10::DispatchKeySet observed_keys() {
  static std::once_flag once;
  std::call_once(once, [] { tensor::intercept_below_autograd(observe); });
  return c10::DispatchKeySet(tensor::kBelowAutograd);
}

at::Tensor over(const at::Tensor& tensor, const c10::Storage& memory) {
  auto copy = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  copy->set_storage_keep_dtype(memory);
  return at::Tensor(std::move(copy));
}

}  // namespace trireme::detail

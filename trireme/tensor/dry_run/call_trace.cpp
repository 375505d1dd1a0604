// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/call_trace.h>

#include <trireme/base/error.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme::tensor {
namespace {

const c10::Storage& storage_of_part(const at::Tensor& tensor) {
  return distributed_meta(tensor).local.storage();
}

}  // namespace

bool has_geometry(const at::Tensor& tensor, const Geometry& geometry) {
  return tensor.sizes() == c10::IntArrayRef(geometry.sizes) &&
         tensor.strides() == c10::IntArrayRef(geometry.strides) &&
         tensor.storage_offset() == geometry.offset;
}

int CallTrace::find(const at::Tensor& tensor) const {
  if (!is_wrapper(tensor)) return -1;
  if (const auto found = tensors_.find(tensor.unsafeGetTensorImpl()); found != tensors_.end()) {
    return found->second.number;
  }
  const auto same = of_storage_.find(storage_of_part(tensor).unsafeGetStorageImpl());
  return same == of_storage_.end() ? -1 : same->second;
}

int CallTrace::add(const at::Tensor& tensor) {
  const int number = num_tensors_++;
  tensors_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{.tensor = c10::weak_intrusive_ptr(tensor.getIntrusivePtr()), .number = number});
  const c10::Storage& storage = storage_of_part(tensor);
  of_storage_.insert_or_assign(storage.unsafeGetStorageImpl(), number);
  storages_.push_back(storage);
  return number;
}

void CallTrace::follow(const at::Tensor& tensor) {
  const c10::Storage& storage = storage_of_part(tensor);
  of_storage_.insert_or_assign(storage.unsafeGetStorageImpl(), find(tensor));
  storages_.push_back(storage);
}

void CallTrace::add_leaf(const at::Tensor& tensor) {
  num_leaves_ += 1;
  add(tensor);
}

// A tensor that is not known has the memory of one that is, or forward was given it.
int CallTrace::number_of(const at::Tensor& tensor) {
  if (const int number = find(tensor); number >= 0) return number;
  if (!is_forward_) give_up("backward begins with a tensor");
  return add(tensor);
}

std::size_t CallTrace::kind_of(const c10::OperatorHandle& op, const OperatorFacts& facts,
                               const Scan& scan, c10::ArrayRef<c10::IValue> arguments,
                               const TracedCall& call) {
  std::optional<CallWords> words = words_of(op, scan, arguments, nullptr);
  TracedKind kind = {.op = op};
  for (std::size_t i = 0; i < scan.inputs.size(); ++i) {
    const InputSlot& slot = scan.inputs[i];
    TracedKind::Input input = {.first = i, .dtype = slot.tensor->scalar_type()};
    if (slot.meta == nullptr) {
      input.plain = *slot.tensor;
    } else {
      input.first = static_cast<std::size_t>(std::ranges::find(call.inputs, call.inputs[i]) -
                                             call.inputs.begin());
      input.geometry = geometry_of(*slot.tensor);
      input.is_wrapped_number = slot.tensor->unsafeGetTensorImpl()->is_wrapped_number();
      input.is_own = slot.meta->is_own;
      if (slot.tensor->is_conj() || slot.tensor->is_neg() || slot.meta->as_weight != nullptr) {
        give_up("a tensor is more than its values and its layout");
      }
    }
    if (words) words->push_back(input.first * 2 + (input.is_own ? 1 : 0));
    kind.inputs.push_back(std::move(input));
  }
  if (words) {
    const auto [found, is_new] = kind_of_words_.try_emplace(std::move(*words), kinds_.size());
    if (!is_new) return found->second;
  }
  for (const c10::IValue& argument : arguments) {
    kind.arguments.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
      // A list of optional tensors has no place for an undefined one.
      return is_wrapper(tensor) ? distributed_meta(tensor).local : tensor;
    }));
  }
  // Backward of an embedding follows how its table was divided in forward.
  kind.follows_others = facts.name.find("embedding") != std::string::npos;
  kinds_.push_back(std::move(kind));
  return kinds_.size() - 1;
}

void CallTrace::begin(const c10::OperatorHandle& op, const OperatorFacts& facts, const Scan& scan,
                      c10::ArrayRef<c10::IValue> arguments) {
  TracedCall call;
  for (const InputSlot& slot : scan.inputs) {
    call.inputs.push_back(slot.meta == nullptr ? -1 : number_of(*slot.tensor));
  }
  if (facts.has_out) give_up(join_message(facts.name, " writes to out="));
  if (op.operator_name().name == "aten::equal") give_up("forward compares tensors");
  const std::size_t num_kinds = kinds_.size();
  call.kind = kind_of(op, facts, scan, arguments, call);
  is_new_kind_ = kinds_.size() > num_kinds;
  calls_.push_back(std::move(call));
  arguments_.clear();
  for (const InputSlot& slot : scan.inputs) arguments_.push_back(*slot.tensor);
}

void CallTrace::end(c10::ArrayRef<c10::IValue> results) {
  TracedCall& call = calls_.back();
  TracedKind& kind = kinds_[call.kind];
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool is_plain = call.inputs[i] < 0;
    if (!is_plain && !has_geometry(arguments_[i], kind.inputs[i].geometry)) {
      give_up("an operator changes the sizes of its argument");
    }
  }
  arguments_.clear();
  const bool is_first = is_new_kind_;
  for (const c10::IValue& result : results) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      if (!is_wrapper(tensor)) return;
      const auto found = tensors_.find(tensor.unsafeGetTensorImpl());
      call.outputs.push_back(found != tensors_.end() ? found->second.number : add(tensor));
      if (is_first) kind.outputs.push_back(geometry_of(tensor));
    });
  }
}

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/sharded/touch.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace trireme::detail {
namespace {

// No part of LibTorch's C++ side uses it; it lies above autograd.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

struct Watched {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Toucher*> touchers;
};

Watched& watched() {
  static Watched all;
  return all;
}

std::atomic<int> num_expecting = 0;

void touch(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  Toucher* toucher = nullptr;
  {
    const std::lock_guard lock(watched().mutex);
    const auto found = watched().touchers.find(storage);
    if (found != watched().touchers.end()) toucher = found->second;
  }
  if (toucher != nullptr) toucher->touch(*storage, is_written);
}

void touch(const c10::IValue& value, bool is_written) {
  if (value.isTensor()) {
    touch(value.toTensor(), is_written);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) touch(tensor, is_written);
  } else if (value.isOptionalTensorList()) {
    const auto tensors = value.toOptionalTensorList();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (const std::optional<at::Tensor> tensor = tensors.get(i)) touch(*tensor, is_written);
    }
  }
}

void before_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  if (num_expecting.load(std::memory_order_acquire) > 0) {
    const auto& arguments = op.schema().arguments();
    const auto values = torch::jit::last(*stack, arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      touch(values[i], alias != nullptr && alias->isWrite());
    }
  }
  op.callBoxed(stack);
}

class KeySet : public c10::TensorImpl {
 public:
  static void set(c10::TensorImpl* tensor, c10::DispatchKeySet keys) {
    tensor->*(&KeySet::key_set_) = keys;
  }
};

void register_fallback() {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
    return made;
  }();
}

}  // namespace

void watch(const at::Tensor& tensor, Toucher& toucher) {
  register_fallback();
  {
    const std::lock_guard lock(watched().mutex);
    watched().touchers[tensor.storage().unsafeGetStorageImpl()] = &toucher;
  }
  KeySet::set(tensor.unsafeGetTensorImpl(), tensor.key_set().add(kKey));
}

void unwatch(const c10::Storage& storage) {
  const std::lock_guard lock(watched().mutex);
  watched().touchers.erase(storage.unsafeGetStorageImpl());
}

void unmark(const at::Tensor& tensor) {
  KeySet::set(tensor.unsafeGetTensorImpl(), tensor.key_set().remove(kKey));
}

void expect_touches(bool on) { num_expecting += on ? 1 : -1; }

}  // namespace trireme::detail

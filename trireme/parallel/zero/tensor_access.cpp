// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/tensor_access.h>

#include <trireme/parallel/recompute/observed_call.h>
#include <trireme/tensor/fallback.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace trireme::detail {
namespace {

struct Watched {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, AccessObserver*> observers;
};

Watched& watched() {
  static Watched& all = *new Watched;  // never destroyed: static modules may outlive it otherwise
  return all;
}

std::atomic<int> num_expecting = 0;

thread_local const c10::OperatorHandle* touching = nullptr;

// An access to a watched storage, and the observer to call.
struct Found {
  AccessObserver* observer;
  TensorAccess access;
};
using AllFound = c10::SmallVector<Found, 8>;

struct Use {
  bool is_written = false;
  bool is_viewed = false;
};

void find(const at::Tensor& tensor, Use use, AllFound& all) {
  if (!tensor.defined() || !tensor.key_set().has(kAccessKey) || !tensor.has_storage()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const std::lock_guard lock(watched().mutex);
  const auto found = watched().observers.find(storage);
  if (found != watched().observers.end()) {
    all.push_back({found->second, {storage, use.is_written, use.is_viewed}});
  }
}

// Calls each observer once with all its accesses, because it may have to make several tensors
// available at the same time.
void tell(AllFound& all) {
  // What observers write to bring a tensor up to date is no effect of a function that is
  // recomputed: its second run would see the memory as it was before.
  Observer* const recomputing = std::exchange(innermost_observer(), nullptr);
  const auto shown = c10::make_scope_exit([&] { innermost_observer() = recomputing; });
  while (!all.empty()) {
    AccessObserver* const observer = all.front().observer;
    c10::SmallVector<TensorAccess, 8> accesses;
    for (const Found& found : all) {
      if (found.observer == observer) accesses.push_back(found.access);
    }
    observer->on_access({accesses.data(), accesses.size()});
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const Found& found) { return found.observer == observer; }),
              all.end());
  }
}

void before_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  // Operators that the observer or a composite operator calls are not reported again.
  const c10::impl::ExcludeDispatchKeyGuard below(kAccessKey);
  if (num_expecting.load(std::memory_order_acquire) > 0) {
    const auto& arguments = op.schema().arguments();
    const auto values = torch::jit::last(*stack, arguments.size());
    AllFound all;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      const Use use = {.is_written = is_written, .is_viewed = alias != nullptr && !is_written};
      tensor::visit_tensors(values[i], [&](const at::Tensor& given) { find(given, use, all); });
    }
    // Composite operators such as `to` and `contiguous` may return a copy in place of a view.
    if (!all.empty() && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      for (Found& found : all) found.access.is_viewed = false;
    }
    const c10::OperatorHandle* const outer = std::exchange(touching, &op);
    const auto end = c10::make_scope_exit([&] { touching = outer; });
    tell(all);
  }
  op.callBoxed(stack);
}

// The key set of a tensor is a protected member, which only a derived class may name.
class KeySet : public c10::TensorImpl {
 public:
  static void set(c10::TensorImpl* tensor, c10::DispatchKeySet keys) {
    tensor->*(&KeySet::key_set_) = keys;
  }
};

}  // namespace

void mark(const at::Tensor& tensor) {
  tensor::install_fallback<&before_operator>(kAccessKey);
  KeySet::set(tensor.unsafeGetTensorImpl(), tensor.key_set().add(kAccessKey));
}

void watch(const at::Tensor& tensor, AccessObserver& observer) {
  {
    const std::lock_guard lock(watched().mutex);
    watched().observers[tensor.storage().unsafeGetStorageImpl()] = &observer;
  }
  mark(tensor);
}

bool is_watched(const at::Tensor& tensor) {
  const std::lock_guard lock(watched().mutex);
  return watched().observers.contains(tensor.storage().unsafeGetStorageImpl());
}

void unwatch(const c10::Storage& storage) { unwatch(storage.unsafeGetStorageImpl()); }

void unwatch(const c10::StorageImpl* storage) {
  const std::lock_guard lock(watched().mutex);
  watched().observers.erase(storage);
}

void unmark(const at::Tensor& tensor) {
  KeySet::set(tensor.unsafeGetTensorImpl(), tensor.key_set().remove(kAccessKey));
}

std::string_view operator_accessing() {
  return touching == nullptr ? std::string_view() : touching->operator_name().name;
}

std::string_view overload_accessing() {
  return touching == nullptr ? std::string_view() : touching->operator_name().overload_name;
}

void touch(const at::Tensor& tensor) {
  if (num_expecting.load(std::memory_order_acquire) == 0) return;
  AllFound all;
  find(tensor, {}, all);
  tell(all);
}

void expect_accesses(bool on) { num_expecting += on ? 1 : -1; }

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/module_claim.h>

#include <trireme/base/error.h>
#include <trireme/parallel/init/construction.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/zero/tensor_access.h>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::pipeline {
namespace {

constexpr auto kHint =
    "call gather_parameters() of the TrainingStep on all ranks before, or read it on a rank that "
    "has "
    "its stage; to write a value of your own through a pointer, write with an operator before "
    "(parameter.zero_() under torch::NoGradGuard)";

std::string was_read(const std::string& name) {
  return join_message(
      name, " was read, which a TrainingStep trains on another rank; its value here is old");
}

// The outdated tensors of this process, which other ranks train. It observes accesses to their
// storages. Thread-safe.
class Outdated final : public detail::AccessObserver {
 public:
  /// Marks a tensor. Returns false if it cannot be watched because it shares its storage with other
  /// tensors, as sharded parameters do.
  bool add(const detail::NamedTensor& item) {
    if (!item.tensor.has_storage()) return false;
    if (item.tensor.storage().nbytes() != item.tensor.nbytes()) return false;
    if (detail::is_watched(item.tensor)) return contains(item.tensor);
    {
      const std::lock_guard lock(mutex_);
      const c10::Storage& storage = item.tensor.storage();
      // The weak reference keeps the address from being reused.
      names_.insert_or_assign(storage.unsafeGetStorageImpl(),
                              Entry{storage.getWeakStorageImpl(), item.name});
      // Some code reads the pointer without an operator, such as torch::save.
      detail::refuse_access(*storage.unsafeGetStorageImpl(),
                            join_message(was_read(item.name), ". hint: ", kHint));
      set_expecting();
    }
    detail::watch(item.tensor, *this);
    return true;
  }

  void forget(const at::Tensor& tensor) {
    if (!tensor.has_storage() || !forget(tensor.storage().unsafeGetStorageImpl())) return;
    detail::unmark(tensor);
  }

  bool contains(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    return tensor.has_storage() && names_.contains(tensor.storage().unsafeGetStorageImpl());
  }

  /// Removes the marks of tensors that no longer exist.
  void forget_expired() {
    const std::lock_guard lock(mutex_);
    std::erase_if(names_, [](const auto& item) {
      if (!item.second.storage.expired()) return false;
      detail::unwatch(item.first);
      return true;
    });
    set_expecting();
  }

  std::uint64_t num_writes() const noexcept { return num_writes_; }

  void on_access(std::span<const detail::TensorAccess> all) override {
    const std::string_view name = detail::operator_accessing();
    for (const detail::TensorAccess& access : all) {
      if (access.is_viewed) continue;
      if (access.is_written) {
        ++num_writes_;
        forget(access.storage);
        continue;
      }
      // Operators such as zeros_like read only the sizes.
      if (name.ends_with("_like") || name.starts_with("aten::new_")) continue;
      const std::lock_guard lock(mutex_);
      const auto found = names_.find(access.storage);
      if (found == names_.end()) continue;
      throw UsageError(was_read(found->second.name), kHint);
    }
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::string name;
  };

  bool forget(const c10::StorageImpl* storage) {
    const std::lock_guard lock(mutex_);
    if (names_.erase(storage) == 0) return false;
    detail::unwatch(storage);
    detail::allow_access(const_cast<c10::StorageImpl&>(*storage));
    set_expecting();
    return true;
  }

  void set_expecting() {
    if (std::exchange(is_expecting_, !names_.empty()) == names_.empty()) {
      detail::expect_accesses(!names_.empty());
    }
  }

  std::atomic<std::uint64_t> num_writes_ = 0;
  std::mutex mutex_;  // guards what follows
  bool is_expecting_ = false;
  std::unordered_map<const c10::StorageImpl*, Entry> names_;
};

// An outdated tensor that cannot be watched, whose TrainingStep was destroyed. Its version counter
// shows later if anything has written to it since.
struct Left {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // keeps the address from being reused
  std::int64_t version;
};

// The claims of this process. Lock order: `mutex` before the mutex of `outdated`.
struct Claims {
  std::mutex mutex;
  std::unordered_set<const c10::TensorImpl*> taken;
  Outdated outdated;
  std::unordered_map<const c10::TensorImpl*, Left> left;
};

Claims& claims() {
  static auto* const all = new Claims;  // never destroyed: modules may outlive static objects
  return *all;
}

void check_not_taken(const Claims& all, const detail::NamedTensor& item, const char* why,
                     const char* hint) {
  if (!all.taken.contains(item.tensor.unsafeGetTensorImpl())) return;
  throw UsageError(
      join_message("the module has a TrainingStep already, which has ", item.name, why), hint);
}

void check_not_left(Claims& all, const detail::NamedTensor& item) {
  const auto left = all.left.find(item.tensor.unsafeGetTensorImpl());
  const bool is_left = left != all.left.end() && left->second.version == item.tensor._version();
  if (!is_left && !all.outdated.contains(item.tensor)) return;
  throw UsageError(
      join_message(item.name,
                   " was trained on another rank by a TrainingStep that has ended, and has "
                   "old values here"),
      "call gather_parameters() before that TrainingStep is destroyed");
}

}  // namespace

ModuleClaim::ModuleClaim(const std::vector<detail::NamedTensor>& tensors) {
  Claims& all = claims();
  const std::scoped_lock lock(all.mutex);
  all.outdated.forget_expired();
  for (const detail::NamedTensor& item : tensors) {
    check_not_taken(all, item,
                    ": of two, each would compute with what the other trains on another rank",
                    "give one TrainingStep all forward passes by name: TrainingStep(module, "
                    "{{\"generator\", …}, "
                    "{\"discriminator\", …}}, plan, group); or destroy the first before");
    check_not_left(all, item);
  }
  for (const detail::NamedTensor& item : tensors) {
    all.taken.insert(item.tensor.unsafeGetTensorImpl());
    all.left.erase(item.tensor.unsafeGetTensorImpl());
    tensors_.push_back(item.tensor);
  }
}

ModuleClaim::ModuleClaim(ModuleClaim&& other) noexcept
    : tensors_(std::exchange(other.tensors_, {})),
      unwatched_(std::exchange(other.unwatched_, {})) {}

ModuleClaim::~ModuleClaim() {
  Claims& all = claims();
  const std::scoped_lock lock(all.mutex);
  for (const at::Tensor& tensor : tensors_) all.taken.erase(tensor.unsafeGetTensorImpl());
  all.outdated.forget_expired();
  std::erase_if(all.left, [](const auto& item) { return item.second.tensor.expired(); });
  for (const at::Tensor& tensor : unwatched_) {
    if (tensor.is_inference()) continue;  // inference tensors have no version counter
    all.left.insert_or_assign(
        tensor.unsafeGetTensorImpl(),
        Left{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
             tensor._version()});
  }
}

void ModuleClaim::check_is_free(const std::vector<detail::NamedTensor>& tensors) {
  Claims& all = claims();
  const std::scoped_lock lock(all.mutex);
  for (const detail::NamedTensor& item : tensors) {
    check_not_taken(all, item, ", and would be parallelized a second time",
                    "train it by the TrainingStep alone, whose plan may have the axes data and "
                    "tensor too; or destroy the TrainingStep before");
    check_not_left(all, item);
  }
}

void ModuleClaim::set_outdated(const std::vector<detail::NamedTensor>& tensors) {
  unwatched_.clear();
  for (const detail::NamedTensor& item : tensors) {
    if (detail::is_deferred(item.tensor)) continue;
    if (!claims().outdated.add(item)) unwatched_.push_back(item.tensor);
  }
}

std::uint64_t ModuleClaim::num_writes() { return claims().outdated.num_writes(); }

void ModuleClaim::set_current() {
  for (const at::Tensor& tensor : tensors_) claims().outdated.forget(tensor);
  unwatched_.clear();
}

}  // namespace trireme::pipeline

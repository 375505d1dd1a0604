// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/module_claim.h>

#include <trireme/base/error.h>
#include <trireme/parallel/sharded/deferred.h>

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::pipeline {
namespace {

struct Outdated {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // no other has its address
  std::int64_t version;
};

struct Claims {
  std::mutex mutex;
  std::unordered_set<const c10::TensorImpl*> taken;
  std::unordered_map<const c10::TensorImpl*, Outdated> outdated;
};

Claims& claims() {
  static auto* const all = new Claims;  // modules may end after static objects
  return *all;
}

void check(const Claims& all, const detail::NamedTensor& item) {
  const c10::TensorImpl* const its = item.tensor.unsafeGetTensorImpl();
  if (all.taken.contains(its)) {
    throw UsageError(
        join_message("the module has a Pipeline already, which has ", item.name,
                     ": of two, each would compute with what the other trains on another rank"),
        "give one Pipeline all forward passes by name: Pipeline(module, {{\"generator\", …}, "
        "{\"discriminator\", …}}, plan, group); or destroy the first before");
  }
  const auto found = all.outdated.find(its);
  if (found == all.outdated.end() || found->second.version != item.tensor._version()) return;
  throw UsageError(
      join_message(item.name,
                   " was trained on another rank by a Pipeline that has ended, and has "
                   "old values here"),
      "call gather_parameters() before that Pipeline is destroyed");
}

}  // namespace

ModuleClaim::ModuleClaim(const std::vector<detail::NamedTensor>& tensors) {
  Claims& all = claims();
  const std::scoped_lock lock(all.mutex);
  for (const detail::NamedTensor& item : tensors) check(all, item);
  for (const detail::NamedTensor& item : tensors) {
    all.taken.insert(item.tensor.unsafeGetTensorImpl());
    all.outdated.erase(item.tensor.unsafeGetTensorImpl());
    tensors_.push_back(item.tensor);
  }
}

ModuleClaim::ModuleClaim(ModuleClaim&& other) noexcept
    : tensors_(std::exchange(other.tensors_, {})), outdated_(std::exchange(other.outdated_, {})) {}

ModuleClaim::~ModuleClaim() {
  Claims& all = claims();
  const std::scoped_lock lock(all.mutex);
  std::erase_if(all.outdated, [](const auto& item) { return item.second.tensor.expired(); });
  for (const at::Tensor& tensor : tensors_) all.taken.erase(tensor.unsafeGetTensorImpl());
  for (const at::Tensor& tensor : outdated_) {
    if (detail::is_deferred(tensor)) continue;
    all.outdated.insert_or_assign(
        tensor.unsafeGetTensorImpl(),
        Outdated{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                 tensor._version()});
  }
}

}  // namespace trireme::pipeline

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/effects.h>

#include <trireme/base/error.h>
#include <trireme/parallel/recompute/observed_call.h>
#include <trireme/tensor/dispatch/distributed_meta.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>

namespace trireme::detail {
namespace {

// While it lives, operators on this thread run without observers, autograd and autocast.
struct Aside {
  c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(tensor::kBelowAutograd) |
                                             c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset};
};

at::Tensor copy_of_bytes(const c10::Storage& storage) {
  const Aside aside;
  at::Tensor bytes = at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte));
  bytes.set_(storage);
  return bytes.clone();
}

at::Tensor state_of(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

const c10::StorageImpl* memory_below(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor::is_wrapper(tensor)) return memory_below(tensor::distributed_meta(tensor).local);
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool Effects::writes_to(const c10::StorageImpl* storage) const {
  return std::ranges::any_of(written,
                             [=](const Memory& memory) { return memory.address == storage; });
}

Observer::Observer() : include_(observed_keys()), outer_(innermost_observer()) {
  innermost_observer() = this;
}

Observer::~Observer() { innermost_observer() = outer_; }

Recording::Recording(Effects& effects, const std::vector<at::Tensor>& inputs, std::string title,
                     bool records_random, bool keeps_copies)
    : effects_(effects),
      title_(std::move(title)),
      records_random_(records_random),
      keeps_copies_(keeps_copies) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (const auto* storage = memory_below(inputs[i])) inputs_.emplace(storage, i);
  }
}

bool Recording::is_inside(const at::Tensor& tensor) const {
  return inside_.contains(memory_below(tensor));
}

void Recording::before_write(const Write& write) {
  const c10::StorageImpl* const storage = write.tensor.storage().unsafeGetStorageImpl();
  // The second run makes this memory anew, so nothing has to be restored.
  if (inside_.contains(storage)) return;
  if (const auto input = inputs_.find(storage); input != inputs_.end()) {
    throw UsageError(
        join_message(title_, " writes to its input ", input->second, " by ", write.operation,
                     ", and would compute something else when it is run again"),
        "let it write to a clone(), or use the operator that is not in place");
  }
  if (write.has_gradient) {
    throw UsageError(
        join_message(title_, " writes what requires a gradient to a tensor ", write.tensor.sizes(),
                     " that was there before it, by ", write.operation),
        "return it instead, or write its detach()");
  }
  // Only the values before the first write are needed.
  if (!keeps_copies_ || effects_.writes_to(storage)) return;
  effects_.written.push_back(
      {write.tensor.storage().getWeakStorageImpl(), storage, copy_of_bytes(write.seen.storage())});
}

void Recording::before_draw(const at::Generator& generator) {
  const auto is_known = [&](const Effects::Stream& stream) {
    return stream.generator == generator;
  };
  if (!records_random_ || !keeps_copies_ || std::ranges::any_of(effects_.drawn, is_known)) return;
  effects_.drawn.push_back({generator, state_of(generator)});
}

Replaying::Replaying(const Effects& effects) {
  for (const Effects::Memory& memory : effects.written) {
    // Its address may belong to another storage by now.
    if (memory.storage.expired()) continue;
    const Aside aside;
    // A clone, because the second run writes to it and there may be further runs.
    copies_.emplace(memory.address, memory.before.clone().storage());
  }
  for (const Effects::Stream& stream : effects.drawn) {
    streams_.push_back({stream.generator, state_of(stream.generator)});
    set_state(stream.generator, stream.before);
  }
}

Replaying::~Replaying() {
  for (const Effects::Stream& stream : streams_) set_state(stream.generator, stream.before);
  // In reverse order, so that the first version noted of each counter is restored last.
  for (auto each = versions_.rbegin(); each != versions_.rend(); ++each) {
    each->first.set_version(each->second);
  }
}

const c10::Storage* Replaying::instead_of(const c10::StorageImpl* storage) {
  const auto copy = copies_.find(storage);
  return copy == copies_.end() ? nullptr : &copy->second;
}

at::Tensor Replaying::seen(const at::Tensor& tensor) const {
  if (copies_.empty() || !tensor.has_storage()) return tensor;
  const auto copy = copies_.find(tensor.storage().unsafeGetStorageImpl());
  if (copy == copies_.end()) return tensor;
  const Aside aside;
  return over(tensor, copy->second).clone();
}

void Replaying::before_write(const Write& write) {
  const c10::VariableVersion& version = write.tensor.unsafeGetTensorImpl()->version_counter();
  const bool is_copied = copies_.contains(write.tensor.storage().unsafeGetStorageImpl());
  if (is_copied && version.enabled()) {
    versions_.emplace_back(version, version.current_version());
  }
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/copy_on_write.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace trireme::checkpoint {
namespace {

// Returns the size of a tensor, rounded up to a cache line.
std::int64_t room_for(const at::Tensor& tensor) {
  constexpr std::int64_t kAlignment = 64;
  return (static_cast<std::int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns a tensor with the memory of another one. Sharded tensors notice calls of operators, and
// may exchange messages then, which the writing thread must not cause; of this one they do not
// know.
at::Tensor memory_of(const at::Tensor& tensor) {
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      [tensor, storage = tensor.storage()](void*) {}, tensor.options().requires_grad(false));
}

// Tensors that were made in inference mode count no changes.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

std::vector<at::Tensor> StagingMemory::copy(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += room_for(tensor);
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_.reset();  // first, so that two never exist
    memory_ = at::empty({bytes}, at::kByte);
  }
  std::vector<at::Tensor> copies;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto size = static_cast<std::int64_t>(tensor.nbytes());
    copies.push_back(
        memory_.narrow(0, begin, size).view(tensor.scalar_type()).view(tensor.sizes()));
    copies.back().copy_(tensor);
    begin += room_for(tensor);
  }
  return copies;
}

CopyOnWrite::CopyOnWrite(std::vector<TensorPart>& parts, bool copies_all, StagingMemory& memory) {
  const auto is_copied = [&](const TensorPart& part) {
    return copies_all || part.changes_any_time || !part.local.is_cpu() || part.local.is_conj() ||
           part.local.is_neg();
  };
  std::vector<at::Tensor> early;
  for (const TensorPart& part : parts) {
    if (is_copied(part)) early.push_back(part.local);
  }
  early = memory.copy(early);
  auto next = early.begin();
  for (TensorPart& part : parts) {
    const bool has_copy = is_copied(part);
    if (has_copy) part.local = *next++;
    Entry& entry = entries_[part.local.unsafeGetTensorImpl()];
    ++entry.parts;
    if (entry.values.defined()) continue;
    entry.given = part.local;
    entry.values = memory_of(part.local);
    entry.name = part.name;
    entry.version = version_of(part.local);
    entry.is_copied = has_copy;
  }
}

void CopyOnWrite::check_unchanged(const Entry& entry) const {
  if (entry.is_copied || version_of(entry.given) == entry.version) return;
  throw UsageError(
      join_message("tensor '", entry.name, "' was changed while a checkpoint was being written"),
      "save with Copying::kAtOnce, such as CheckpointOptions::copying, where callbacks or forward "
      "change parameters; loops of your own call AsyncSaver::before_change() before tensors "
      "change");
}

void CopyOnWrite::read(const TensorPart& part, std::int64_t block_bytes,
                       const std::function<void(std::span<const std::byte>)>& use) {
  const auto all = static_cast<std::int64_t>(part.local.nbytes());
  const c10::TensorImpl* const key = part.local.unsafeGetTensorImpl();
  std::vector<std::byte> block;  // a copy of what may change
  at::Tensor own;                // dense values that do not change
  for (std::int64_t begin = 0; begin < all; begin += block_bytes) {
    const auto first = static_cast<std::size_t>(begin);
    const auto size = static_cast<std::size_t>(std::min(block_bytes, all - begin));
    if (!own.defined()) {
      is_copying_.wait(true);
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      const Entry& entry = entries_.at(key);
      const at::Tensor values = dense(entry.values);
      if (entry.is_copied || !values.is_alias_of(entry.values)) {
        own = values;
      } else {
        block.resize(size);
        std::memcpy(block.data(), bytes_of(values).data() + first, size);
      }
      check_unchanged(entry);
    }
    // The lock is free, so that training does not wait for the disk.
    use(own.defined() ? bytes_of(own).subspan(first, size) : std::span(block).first(size));
  }
  const std::lock_guard lock(mutex_);
  --entries_.at(key).parts;
}

void CopyOnWrite::copy_rest(StagingMemory& memory) noexcept {
  is_copying_ = true;
  {
    const std::lock_guard lock(mutex_);
    try {
      std::vector<Entry*> rest;
      std::vector<at::Tensor> tensors;
      for (auto& [impl, entry] : entries_) {
        if (entry.parts == 0 || entry.is_copied) continue;
        check_unchanged(entry);
        rest.push_back(&entry);
        tensors.push_back(entry.values);
      }
      const std::vector<at::Tensor> copies = memory.copy(tensors);
      for (std::size_t i = 0; i < rest.size(); ++i) {
        rest[i]->values = copies[i];
        rest[i]->is_copied = true;
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  is_copying_ = false;
  is_copying_.notify_all();
}

}  // namespace trireme::checkpoint

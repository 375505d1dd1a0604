// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/messages/message_buffers.h>

#include <trireme/parallel/module/local_memory.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace trireme::pipeline {
namespace {

at::Tensor empty_of(const Shape& shape, const at::TensorOptions& options) {
  return shape.strides.empty() ? at::empty(shape.sizes, options)
                               : at::empty_strided(shape.sizes, shape.strides, options);
}

// Returns the memory of a dense tensor as a flat tensor with a storage of its own. The engine's
// thread may destroy a message long after it was delivered, which must not count as a use of the
// memory.
at::Tensor flat_message(const at::Tensor& tensor, std::shared_ptr<void> owner) {
  return at::from_blob(
      tensor.mutable_data_ptr(), {tensor.numel()}, [owner = std::move(owner)](void*) {},
      tensor.options().requires_grad(false));
}

bool has_shape(const at::Tensor& tensor, const Shape& shape) {
  return shape.strides.empty() ? tensor.is_contiguous()
                               : tensor.strides() == at::IntArrayRef(shape.strides);
}

}  // namespace

struct Buffers::Memory {
  at::Tensor whole;
};

Buffers::Buffers(at::Device device) : device_(device) {}
Buffers::~Buffers() = default;

Buffers::Lent Buffers::take(const Shape& shape, at::ScalarType dtype) {
  auto& memories = memories_[{shape.sizes, shape.strides, dtype}];
  auto found = std::ranges::find_if(memories, [](const std::shared_ptr<Memory>& memory) {
    return memory->whole.storage().use_count() == 1;
  });
  if (found == memories.end()) {
    const at::TensorOptions options = at::TensorOptions(dtype).device(device_);
    memories.push_back(std::make_shared<Memory>(Memory{empty_of(shape, options)}));
    found = memories.end() - 1;
    ++size_;
  }
  return {.tensor = (*found)->whole.detach(), .message = flat_message((*found)->whole, *found)};
}

Outgoing::Outgoing(const at::Tensor& tensor, const Shape& shape) {
  at::Tensor whole = tensor.detach();
  if (!has_shape(whole, shape)) whole = empty_of(shape, whole.options()).copy_(whole);
  tensor_ = std::make_shared<at::Tensor>(std::move(whole));
  message_ = flat_message(*tensor_, tensor_);
}

void Outgoing::release() {
  message_.reset();
  tensor_->reset();
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return false;
  const at::Tensor here = detail::memory_of(a);
  const at::Tensor there = detail::memory_of(b);
  return here.has_storage() && there.has_storage() && here.is_alias_of(there);
}

}  // namespace trireme::pipeline

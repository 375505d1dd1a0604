// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/buckets/buffer_broadcast.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <map>

namespace trireme::detail {
namespace {

// Returns an alias without the version counter. Otherwise writing a buffer would make autograd
// refuse the backward pass of a graph that saved it.
at::Tensor alias_of(const at::Tensor& tensor) { return at::Tensor(tensor.variable_data()); }

// Returns a view with every element once: dimensions repeated by expand() have size 1.
at::Tensor distinct_elements(const at::Tensor& tensor) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) sizes[static_cast<std::size_t>(dim)] = 1;
  }
  return alias_of(tensor).as_strided(sizes, tensor.strides());
}

// Returns the bytes of a dense tensor in the order of its memory, which is the same on all ranks.
at::Tensor flat_bytes(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}).view(at::kByte);
}

}  // namespace

void broadcast_strided(const at::Tensor& tensor, int root, const comm::Group& group,
                       std::string_view label) {
  if (tensor.is_non_overlapping_and_dense()) return comm::broadcast(tensor, root, group, label);
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  at::Tensor values = distinct_elements(tensor);
  const at::Tensor message = values.contiguous();
  comm::broadcast(message, root, group, label);
  if (group.rank() != root) values.copy_(message);
}

BufferBroadcast::BufferBroadcast(const std::vector<at::Tensor>& buffers, comm::Group group)
    : group_(std::move(group)) {
  if (group_.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<std::string, Message> by_device;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.numel() == 0) continue;
    Message& message = by_device[buffer.device().str()];
    if (buffer.is_non_overlapping_and_dense()) {
      message.buffers.push_back(flat_bytes(alias_of(buffer)));
      continue;
    }
    const at::Tensor values = distinct_elements(buffer);
    const at::Tensor copy = at::empty_like(values, at::MemoryFormat::Contiguous);
    message.buffers.push_back(flat_bytes(copy));
    message.copies.push_back({values, copy});
  }
  for (auto& [device, message] : by_device) {
    message.bytes = at::cat(message.buffers);
    messages_.push_back(std::move(message));
  }
}

void BufferBroadcast::start() {
  for (Message& message : messages_) {
    if (group_.rank() == 0) {
      for (Copy& copy : message.copies) copy.dense.copy_(copy.values);
      at::cat_out(message.bytes, message.buffers);
    }
    message.work = comm::broadcast_async(message.bytes, 0, group_);
  }
}

void BufferBroadcast::finish() {
  for (Message& message : messages_) {
    message.work.wait();
    if (group_.rank() == 0) continue;
    std::int64_t offset = 0;
    for (at::Tensor& buffer : message.buffers) {
      buffer.copy_(message.bytes.narrow(0, offset, buffer.numel()));
      offset += buffer.numel();
    }
    for (Copy& copy : message.copies) copy.values.copy_(copy.dense);
  }
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/data/buffer_broadcast.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <map>

namespace trireme::detail {

BufferBroadcast::BufferBroadcast(const std::vector<at::Tensor>& buffers, comm::Group group)
    : group_(std::move(group)) {
  if (group_.size() == 1) return;
  std::map<std::string, Message> by_device;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.numel() == 0) continue;
    // Without the version counter: a graph that saved the buffer may still run backward.
    const at::Tensor bytes =
        at::Tensor(buffer.variable_data()).as_strided({buffer.numel()}, {1}).view(at::kByte);
    by_device[buffer.device().str()].buffers.push_back(bytes);
  }
  for (auto& [device, message] : by_device) {
    message.bytes = at::cat(message.buffers);
    messages_.push_back(std::move(message));
  }
}

void BufferBroadcast::start() {
  for (Message& message : messages_) {
    if (group_.rank() == 0) at::cat_out(message.bytes, message.buffers);
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
  }
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/offload/host_copies.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace trireme::pipeline {
namespace {

// Returns the stream on which this thread's operators on a device run.
c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

at::Tensor bytes_of(const c10::Storage& memory) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(memory.device()));
  bytes.set_(memory, 0, {static_cast<std::int64_t>(memory.nbytes())}, {1});
  return bytes;
}

}  // namespace

StreamPoint::StreamPoint(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  event_ = std::move(event);
}

void StreamPoint::hold_up(const c10::Stream& stream) const {
  if (event_) event_->block(stream);
}

void StreamPoint::hold_up_current() const {
  if (event_) event_->block(current_stream(event_->device()));
}

CopyStream::CopyStream(c10::Device device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

StreamPoint CopyStream::run(std::span<const StreamPoint> after,
                            const std::function<void()>& copy) const {
  if (!stream_) {
    copy();
    return {};
  }
  // The copy reads memory that the computing stream may still be writing.
  StreamPoint(current_stream(stream_->device())).hold_up(*stream_);
  for (const StreamPoint& point : after) point.hold_up(*stream_);
  const c10::StreamGuard guard(*stream_);
  copy();
  return StreamPoint(*stream_);
}

struct HostCopies::Block {
  at::Tensor memory;    // [bytes]
  StreamPoint is_read;  // when the last copy to the device is done, so that it may be overwritten
};

HostCopies::HostCopies(at::Device device) : device_(device), to_host_(device), to_device_(device) {}
HostCopies::~HostCopies() = default;

std::shared_ptr<HostCopies::Block> HostCopies::take(std::int64_t bytes) {
  auto& blocks = blocks_[bytes];
  const auto found = std::ranges::find_if(
      blocks, [](const std::shared_ptr<Block>& block) { return block.use_count() == 1; });
  if (found != blocks.end()) return *found;
  const at::TensorOptions options = at::TensorOptions(at::kByte).pinned_memory(!device_.is_cpu());
  num_bytes_ += bytes;
  return blocks.emplace_back(
      std::make_shared<Block>(Block{.memory = at::empty({bytes}, options), .is_read = {}}));
}

HostCopies::Stored HostCopies::store(std::span<const c10::Storage> memories) {
  const at::NoGradGuard no_grad;
  Stored stored;
  std::vector<StreamPoint> reads;
  for (const c10::Storage& memory : memories) {
    stored.blocks_.push_back(take(static_cast<std::int64_t>(memory.nbytes())));
    reads.push_back(stored.blocks_.back()->is_read);
  }
  stored.copied_ = to_host_.run(reads, [&] {
    for (std::size_t i = 0; i < memories.size(); ++i) {
      stored.blocks_[i]->memory.copy_(bytes_of(memories[i]), /*non_blocking=*/true);
    }
  });
  return stored;
}

std::vector<c10::Storage> HostCopies::load(Stored& stored) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> bytes;
  for (const std::shared_ptr<Block>& block : stored.blocks_) {
    // Allocated while the computing stream is current, because that stream uses the memory next.
    bytes.push_back(at::empty({block->memory.numel()}, block->memory.options().device(device_)));
  }
  stored.copied_ = to_device_.run({&stored.copied_, 1}, [&] {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i].copy_(stored.blocks_[i]->memory, /*non_blocking=*/true);
    }
  });
  std::vector<c10::Storage> memories;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    stored.blocks_[i]->is_read = stored.copied_;
    memories.push_back(bytes[i].storage());
  }
  return memories;
}

}  // namespace trireme::pipeline

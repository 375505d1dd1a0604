// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/offload/copy_stream.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace trireme::pipeline {
namespace {

// Returns the stream on which this thread's operators on a device run.
c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
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

}  // namespace trireme::pipeline

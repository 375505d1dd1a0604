// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/streams.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <ranges>

namespace trireme::comm::threads {

using c10::impl::VirtualGuardImpl;

bool has_streams(at::Device device) noexcept { return !device.is_cpu(); }

std::optional<c10::Event> record_current(at::Device device) {
  if (!has_streams(device)) return std::nullopt;
  c10::Event event(device.type());
  event.record(VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void wait_on_stream(const c10::Stream& stream, const c10::Event& event) {
  if (event.device_type() == stream.device_type()) {
    event.block(stream);
  } else {
    event.synchronize();  // accelerators of two kinds do not know each other's events
  }
}

void wait_on_device(at::Device device, const Events& events) {
  if (events.empty()) return;
  if (!has_streams(device)) {
    for (const c10::Event& event : events) event.synchronize();
    return;
  }
  const c10::Stream current = VirtualGuardImpl(device.type()).getStream(device);
  for (const c10::Event& event : events) wait_on_stream(current, event);
}

CurrentStreams::CurrentStreams(std::span<const c10::Stream> streams) {
  before_.reserve(streams.size());
  for (const c10::Stream& stream : streams) {
    before_.push_back(VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
  }
}

CurrentStreams::~CurrentStreams() {
  for (const c10::Stream& stream : before_ | std::views::reverse) {
    VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }
}

std::vector<c10::Stream> CopyStreams::take(Lane lane, std::span<const at::Device> devices) {
  std::vector<c10::Stream> taken;
  const std::lock_guard lock(mutex_);
  for (const at::Device device : devices) {
    if (!has_streams(device)) continue;
    const auto key = std::pair(lane, std::pair(device.type(), device.index()));
    auto found = streams_.find(key);
    if (found == streams_.end()) {
      const VirtualGuardImpl guard(device.type());
      found = streams_.emplace(key, guard.getStreamFromGlobalPool(device)).first;
    }
    taken.push_back(found->second);
  }
  return taken;
}

}  // namespace trireme::comm::threads

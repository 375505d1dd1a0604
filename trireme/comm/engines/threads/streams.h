// SPDX-License-Identifier: Apache-2.0
// Streams and events of any accelerator that LibTorch supports, through its registry of device
// guards. No vendor header is needed. The CPU has neither streams nor events, and its work is
// always done.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::comm::threads {

/// Events on any devices.
using Events = std::vector<c10::Event>;

bool has_streams(at::Device device) noexcept;

/// Returns an event after all work that the calling thread's current stream of `device` has been
/// given. Nothing for a device without streams.
std::optional<c10::Event> record_current(at::Device device);

void wait_on_stream(const c10::Stream& stream, const c10::Event& event);

/// Makes later work on `device` wait for all events. On the calling thread's current stream of the
/// device, or, if it is the CPU, by blocking the thread.
void wait_on_device(at::Device device, const Events& events);

/// Makes these streams the current ones of their devices, for the calling thread and during its
/// lifetime.
class CurrentStreams {
 public:
  explicit CurrentStreams(std::span<const c10::Stream> streams);
  ~CurrentStreams();
  CurrentStreams(const CurrentStreams&) = delete;
  CurrentStreams& operator=(const CurrentStreams&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

/// Streams for copies, one for each device and lane. Copies in different lanes do not wait for each
/// other. Thread-safety: safe.
class CopyStreams {
 public:
  using Lane = std::pair<int, int>;  ///< sending and receiving rank

  /// Returns a stream for each of these devices that has streams.
  std::vector<c10::Stream> take(Lane lane, std::span<const at::Device> devices);

 private:
  std::mutex mutex_;
  std::map<std::pair<Lane, std::pair<at::DeviceType, at::DeviceIndex>>, c10::Stream>
      streams_;  // guarded by mutex_
};

}  // namespace trireme::comm::threads

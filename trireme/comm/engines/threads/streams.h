// SPDX-License-Identifier: Apache-2.0
// Streams and events of whatever accelerator LibTorch has, through its registry of device guards:
// no header of any vendor. The processor has none of either, and is always done.
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

using Events = std::vector<c10::Event>;

bool has_streams(at::Device device) noexcept;

/// An event behind everything that the calling thread's current stream of `device` was given.
std::optional<c10::Event> record_current(at::Device device);

/// Lets what `stream` is given from now on wait for `event`.
void wait_on_stream(const c10::Stream& stream, const c10::Event& event);

/// Lets what follows on `device` wait for all of them: its current stream of the calling thread,
/// or, where it is the processor, the calling thread.
void wait_on_device(at::Device device, const Events& events);

/// While it lives, these are the calling thread's current streams of their devices.
class CurrentStreams {
 public:
  explicit CurrentStreams(std::span<const c10::Stream> streams);
  ~CurrentStreams();
  CurrentStreams(const CurrentStreams&) = delete;
  CurrentStreams& operator=(const CurrentStreams&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

/// Streams for copies, one for each device and lane: copies in different lanes do not wait for each
/// other. Thread-safety: safe.
class CopyStreams {
 public:
  using Lane = std::pair<int, int>;  ///< sending and receiving rank

  /// One stream for each of these devices; those without streams are passed over.
  std::vector<c10::Stream> take(Lane lane, std::span<const at::Device> devices);

 private:
  std::mutex mutex_;
  std::map<std::pair<Lane, std::pair<at::DeviceType, at::DeviceIndex>>, c10::Stream>
      streams_;  // guarded by mutex_
};

}  // namespace trireme::comm::threads

// SPDX-License-Identifier: Apache-2.0
// Copies between a device and host memory beside what the device computes: on a stream of their
// own, put in order by events. Streams and events are those of whatever device LibTorch has guards
// for. The processor has none: a copy there is done when it has been asked for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace trireme::pipeline {

/// A point in the work that a stream was given: reached when all before it is done. Cheap to copy.
class StreamPoint {
 public:
  /// One that is reached.
  StreamPoint() = default;
  /// After everything that `stream` was given until now.
  explicit StreamPoint(const c10::Stream& stream);

  /// What `stream` is given from now on begins when this is reached. Does not block the thread.
  void hold_up(const c10::Stream& stream) const;
  /// The same for the stream that is current on this thread for the point's device.
  void hold_up_current() const;

 private:
  std::shared_ptr<const c10::Event> event_;
};

/// One direction of copies. Not thread-safe.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device);

  /// Calls `copy` with this stream as the current one. What that enqueues begins when all that the
  /// stream which is current now was given is done, and all of `after` are reached. Returns when it
  /// is done.
  StreamPoint run(std::span<const StreamPoint> after, const std::function<void()>& copy) const;

 private:
  std::optional<c10::Stream> stream_;  // none for the processor
};

}  // namespace trireme::pipeline

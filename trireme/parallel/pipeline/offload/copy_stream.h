// SPDX-License-Identifier: Apache-2.0
// StreamPoint and CopyStream: copies between a device and host memory that overlap with
// computation. They run on a stream of their own and are ordered by events. They work for every
// device type with a LibTorch device guard. The CPU has no streams: a copy there is done when the
// call returns.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace trireme::pipeline {

/// A point in the queue of a stream. It is reached when all work queued before it is done. Cheap to
/// copy.
class StreamPoint {
 public:
  /// Makes a point that is reached already.
  StreamPoint() = default;
  /// Makes a point after all work that is queued on `stream` now.
  explicit StreamPoint(const c10::Stream& stream);

  /// Makes work that is queued on `stream` from now on wait for this point. Does not block the
  /// thread.
  void hold_up(const c10::Stream& stream) const;
  /// Does the same for this thread's current stream of the point's device.
  void hold_up_current() const;

 private:
  std::shared_ptr<const c10::Event> event_;
};

/// A stream for copies in one direction. Not thread-safe.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device);

  /// Calls `copy` with this stream as the current one. The work that it queues begins after all
  /// work on the stream that is current now, and after all points of `after`.
  /// @return the point after that work. Does not block the thread, except on the CPU.
  StreamPoint run(std::span<const StreamPoint> after, const std::function<void()>& copy) const;

 private:
  std::optional<c10::Stream> stream_;  // empty for the CPU
};

}  // namespace trireme::pipeline

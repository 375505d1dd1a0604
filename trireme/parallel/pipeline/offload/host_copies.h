// SPDX-License-Identifier: Apache-2.0
// HostCopies: moves storages of a device to host memory and back. Host blocks are pinned, so that
// copies run asynchronously. Free blocks are reused, in the same step or a later one. The copies
// run on a CopyStream of their own and are ordered by StreamPoints, for every device type with a
// LibTorch device guard. The CPU has no streams: a copy there is done when the call returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

/// A pool of host memory with one stream for each direction of copies. Not thread-safe. All calls
/// must be made with the same current stream: the one on which the device computes.
class HostCopies {
 public:
  explicit HostCopies(at::Device device);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// The host blocks of some storages, until they are loaded again.
  class Stored;

  /// Starts copying storages of the device to the host. They may be released or overwritten after
  /// `Stored::wait`. Does not block, except on the CPU.
  Stored store(std::span<const c10::Storage> memories);

  /// Allocates new storages on the device, in the order of store(), and starts copying into them.
  /// They may be read after `Stored::wait`. Does not block, except on the CPU.
  std::vector<c10::Storage> load(Stored& stored);

  const at::Device& device() const noexcept { return device_; }
  /// Returns the bytes of allocated host memory, in use or free.
  std::int64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  struct Block;
  std::shared_ptr<Block> take(std::int64_t bytes);

  at::Device device_;
  CopyStream to_host_;
  CopyStream to_device_;
  std::map<std::int64_t, std::vector<std::shared_ptr<Block>>> blocks_;  // by size
  std::int64_t num_bytes_ = 0;
};

/// Holds host blocks, and returns them to the pool when it is destroyed. Move-only.
class HostCopies::Stored {
 public:
  Stored() = default;
  Stored(Stored&&) noexcept = default;
  Stored& operator=(Stored&&) noexcept = default;

  /// Makes the device's computation wait for the copies that were started last. Does not block the
  /// thread.
  void wait() const { copied_.hold_up_current(); }

 private:
  friend class HostCopies;
  std::vector<std::shared_ptr<Block>> blocks_;
  StreamPoint copied_;
};

}  // namespace trireme::pipeline

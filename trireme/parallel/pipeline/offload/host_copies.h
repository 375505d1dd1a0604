// SPDX-License-Identifier: Apache-2.0
// Memories of a device that are in host memory for a while. The host's blocks are pinned, so that
// copies need not wait for the processor, and are used again, in this step or a later one.
#pragma once

#include <trireme/parallel/pipeline/offload/copy_stream.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace trireme::pipeline {

/// Not thread-safe. All calls are made with the same stream of the device current, on which it
/// computes.
class HostCopies {
 public:
  explicit HostCopies(at::Device device);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Of some memories, while they are in host memory or on their way.
  class Stored;

  /// Begins to copy memories of the device, of any number of bytes. They may be let go, and written
  /// to, after `Stored::wait`.
  Stored store(std::span<const c10::Storage> memories);

  /// New memories of the device, in the order of `store`, into which copies begin. What they hold
  /// may be used after `Stored::wait`.
  std::vector<c10::Storage> load(Stored& stored);

  const at::Device& device() const noexcept { return device_; }
  /// Host memory that there is for copies, in use or not.
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

/// Gives its blocks back at its end.
class HostCopies::Stored {
 public:
  Stored() = default;
  Stored(Stored&&) noexcept = default;
  Stored& operator=(Stored&&) noexcept = default;

  /// The device's computation goes on after the copies that were begun last. Does not block the
  /// thread.
  void wait() const { copied_.hold_up_current(); }

 private:
  friend class HostCopies;
  std::vector<std::shared_ptr<Block>> blocks_;
  StreamPoint copied_;
};

}  // namespace trireme::pipeline

// SPDX-License-Identifier: Apache-2.0
// Registered memory: blocks that all ranks of a group can read and write in place, so that
// collectives on them copy nothing.
#pragma once

#include <trireme/comm/engines/shm/segment.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace trireme::shm {

/// One block per rank, all of one length, made together by Communicator::allocate. Lives as long as
/// any handle of it; the other ranks' blocks live on until they drop theirs.
class Allocation {
 public:
  Allocation(Segment segment, std::uint64_t number, int rank, std::size_t bytes);

  /// This rank's block; 64-byte aligned, zero at first.
  std::byte* data() const noexcept { return block(rank_); }
  std::size_t bytes() const noexcept { return bytes_; }
  std::uint64_t number() const noexcept { return number_; }

  /// Another rank's block, as it is mapped here.
  std::byte* block(int rank) const noexcept {
    return segment_.data() + static_cast<std::size_t>(rank) * stride(bytes_);
  }

  /// Distance between blocks: whole pages.
  static std::size_t stride(std::size_t bytes) noexcept { return (bytes + 4095) / 4096 * 4096; }

 private:
  Segment segment_;
  std::uint64_t number_;
  int rank_;
  std::size_t bytes_;
};

/// Where memory lies in the allocations of a group; equal on all ranks for tensors made alike.
struct RegisteredPlace {
  std::uint64_t allocation = 0;  ///< 0: not registered
  std::uint64_t offset = 0;
  bool operator==(const RegisteredPlace&) const = default;
};

/// The allocations of one rank that are still alive. Thread-safety: safe.
class Allocations {
 public:
  void add(const std::shared_ptr<Allocation>& allocation);

  /// Finds the allocation whose own block holds all of these bytes.
  RegisteredPlace find(const void* data, std::size_t bytes) const;

  /// Null where it is gone.
  std::shared_ptr<Allocation> get(std::uint64_t number) const;

 private:
  mutable std::mutex mutex_;  // guards by_address_
  std::map<const std::byte*, std::weak_ptr<Allocation>> by_address_;
};

}  // namespace trireme::shm

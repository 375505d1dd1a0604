// SPDX-License-Identifier: Apache-2.0
// Registered memory: blocks that all ranks of a group can read and write in place. Collectives on
// them copy nothing.
#pragma once

#include <trireme/comm/engines/shm/segment.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace trireme::shm {

/// One block per rank, all of equal length, made by Communicator::allocate. Lives as long as any
/// handle of it. The blocks of other ranks live until these ranks drop their handles.
class Allocation {
 public:
  Allocation(Segment segment, std::uint64_t number, int rank, std::size_t bytes);

  /// Returns this rank's block. 64-byte aligned and zeroed at first.
  std::byte* data() const noexcept { return block(rank_); }
  /// Returns the length of a block.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the number of this allocation in its group, equal on all ranks.
  std::uint64_t number() const noexcept { return number_; }

  /// Returns the block of a rank, at its address in this process.
  std::byte* block(int rank) const noexcept {
    return segment_.data() + static_cast<std::size_t>(rank) * stride(bytes_);
  }

  /// Returns the distance between blocks: whole pages.
  static std::size_t stride(std::size_t bytes) noexcept { return (bytes + 4095) / 4096 * 4096; }

 private:
  Segment segment_;
  std::uint64_t number_;
  int rank_;
  std::size_t bytes_;
};

/// A place in the allocations of a group. Tensors that all ranks allocate alike have the same
/// place.
struct RegisteredPlace {
  std::uint64_t allocation = 0;  ///< number of the allocation; 0 if the memory is not registered
  std::uint64_t offset = 0;
  bool operator==(const RegisteredPlace&) const = default;
};

/// The living allocations of one rank. Thread-safety: safe.
class Allocations {
 public:
  /// Adds an allocation.
  void add(const std::shared_ptr<Allocation>& allocation);

  /// Returns the place of these bytes, if they lie in one of this rank's blocks.
  RegisteredPlace find(const void* data, std::size_t bytes) const;

  /// Returns the allocation with that number, or null if it is gone.
  std::shared_ptr<Allocation> get(std::uint64_t number) const;

 private:
  mutable std::mutex mutex_;  // guards by_address_
  std::map<const std::byte*, std::weak_ptr<Allocation>> by_address_;
};

}  // namespace trireme::shm

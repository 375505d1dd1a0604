// SPDX-License-Identifier: Apache-2.0
// An allocator for large blocks of a few sizes that are allocated and released again and again, as
// in the steps of training. Released blocks stay in the process and are reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace trireme {

/// Allocates blocks from one reserved range of addresses. An allocation takes the smallest free
/// block that is large enough, and the lowest one among equals. Adjacent free blocks are merged.
/// The system provides memory when a page is first touched, in huge pages if it can. Memory is
/// returned to the system only above the highest block that was used recently. All methods may be
/// called concurrently.
///
/// The policy is that of dlmalloc (D. Lea, "A Memory Allocator"): best fit with coalescing. The
/// bookkeeping is kept outside the blocks.
class MemoryPool {
 public:
  /// The alignment of blocks in bytes. Sizes are rounded up to a multiple of it.
  static constexpr std::size_t kAlignment = 4096;

  /// Reserves a range of addresses without allocating memory. Throws ConfigError if the system
  /// refuses the range (`ulimit -v`).
  /// @param bytes the total size of all blocks that can be allocated at one time.
  explicit MemoryPool(std::size_t bytes);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns a block of at least `bytes` bytes. Returns nullptr if no free block is large enough,
  /// or the system has no memory for it.
  void* allocate(std::size_t bytes);

  /// Releases a block. Throws InternalError for a pointer that is not an allocated block.
  /// @param data a pointer returned by allocate().
  void release(void* data);

  /// A range of addresses.
  struct Range {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
  };

  /// Returns the range of all blocks.
  Range range() const noexcept { return {begin_, end_}; }

  /// Returns the pages that hold these bytes of one allocated block and no others that anybody may
  /// use. Empty (both ends null) if there are none, or the bytes do not lie in one block.
  Range whole_pages(const void* data, std::size_t bytes) const;

  /// Sets the function that returns pages to the system, in place of madvise(). Afterwards the
  /// pages must read as zeros or anything else, and be writable. It is called with the pool locked.
  /// Set it before the first allocation.
  void set_return_pages(std::function<void(Range)> return_pages) {
    return_pages_ = std::move(return_pages);
  }

  /// Sets a function that is told of each block that is released, with its whole pages. It may
  /// replace them by others, which are writable and read as anything. It is called with the pool
  /// locked and must not throw. Set it before the first allocation.
  void set_released(std::function<void(Range)> released) { released_ = std::move(released); }

  /// Returns true if the address lies in the range of this pool.
  bool owns(const void* data) const noexcept { return data >= begin_ && data < end_; }

  /// Returns the number of bytes from the start of the range that may be backed by memory of the
  /// system.
  std::size_t extent() const;

  /// Locks the pool around fork(), for pthread_atfork: the child must not inherit a pool in the
  /// middle of an operation.
  void lock() { mutex_.lock(); }
  /// Releases the lock taken by lock().
  void unlock() { mutex_.unlock(); }

 private:
  struct Piece {
    std::size_t bytes = 0;
    bool is_free = true;
    std::size_t requested = 0;  // of these bytes
  };
  using Pieces = std::map<std::byte*, Piece>;  // covers the whole range without gaps

  bool make_usable(const std::byte* end);
  void note_use(std::byte* end);
  void give_back_above(std::byte* end);
  Pieces::iterator join(Pieces::iterator first, Pieces::iterator second);

  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  mutable std::mutex mutex_;  // guards all members below
  Pieces pieces_;
  std::set<std::pair<std::size_t, std::byte*>> free_;  // by size, then address
  std::byte* usable_end_ = nullptr;   // addresses from here on are not yet readable or writable
  std::byte* touched_end_ = nullptr;  // pages from here on are not backed by memory
  // The highest end of an allocated block, in the current period and in the one before it.
  std::byte* highest_ = nullptr;
  std::byte* highest_before_ = nullptr;
  int num_taken_ = 0;  // allocations in the current period
  std::function<void(Range)> return_pages_;
  std::function<void(Range)> released_;
};

}  // namespace trireme

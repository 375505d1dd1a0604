// SPDX-License-Identifier: Apache-2.0
// Memory in large pieces of a few sizes that come and go again and again, as a step of training
// takes them: what is given back stays with the process and is taken again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace trireme {

/// One range of addresses, of which pieces are taken where they fit best: the smallest free piece
/// that is large enough, among equal ones the lowest; free neighbours are joined. The system gives
/// memory where it is first touched, in huge pages where it can, and takes none back but what lies
/// above all pieces of the last while. All methods may be called concurrently.
///
/// The policy is that of dlmalloc (D. Lea, "A Memory Allocator", best fit with coalescing); what is
/// known of the pieces is kept outside of them.
class MemoryPool {
 public:
  /// Pieces begin at multiples of this, and their sizes are rounded up to it.
  static constexpr std::size_t kAlignment = 4096;

  /// Reserves addresses, and no memory. Throws ConfigError where the system refuses (ulimit -v).
  /// @param bytes all that pieces can take together.
  explicit MemoryPool(std::size_t bytes);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns null where no free piece is large enough, or the system has no memory for it.
  void* allocate(std::size_t bytes);

  /// @param data what allocate has returned.
  void release(void* data);

  /// Whether an address lies in the range.
  bool owns(const void* data) const noexcept { return data >= begin_ && data < end_; }

  /// Bytes from the beginning of the range that may have memory of the system.
  std::size_t extent() const;

  /// For pthread_atfork: a process is forked between two calls, not in one.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Piece {
    std::size_t bytes = 0;
    bool is_free = true;
  };
  using Pieces = std::map<std::byte*, Piece>;  // all of the range, without gaps

  bool make_usable(const std::byte* end);
  void note_use(std::byte* end);
  void give_back_above(std::byte* end);
  Pieces::iterator join(Pieces::iterator first, Pieces::iterator second);

  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  mutable std::mutex mutex_;  // guards all below
  Pieces pieces_;
  std::set<std::pair<std::size_t, std::byte*>> free_;  // by size, then address
  std::byte* usable_end_ = nullptr;                    // from here on nothing may be touched
  std::byte* touched_end_ = nullptr;  // from here on nothing was since it was given back
  // The highest end of a piece that was taken, in this while and in the one before.
  std::byte* highest_ = nullptr;
  std::byte* highest_before_ = nullptr;
  int num_taken_ = 0;  // in this while
};

}  // namespace trireme

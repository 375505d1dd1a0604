// SPDX-License-Identifier: Apache-2.0
// Replays allocations as LibTorch's allocator for accelerators carries them out, to find the memory
// that it holds beyond what is in use.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

namespace trireme::predict {

/// The rules of CUDACachingAllocator of PyTorch 2 with its default settings
/// (c10/cuda/CUDACachingAllocator.cpp): sizes are rounded up to 512 bytes; up to 1 MiB they come
/// from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and larger ones have segments of
/// their own, rounded up to 2 MiB. The smallest free block that is large enough is taken, and
/// divided unless too little would be left. Neighbours that are free are joined. Segments are never
/// given back. Not thread-safe.
class CachingAllocator {
 public:
  /// Allocates `bytes` under a name that is not in use. Nothing happens for 0 bytes.
  void allocate(std::int64_t name, double bytes);
  /// Frees what has this name, if anything has.
  void free(std::int64_t name);

  double reserved() const noexcept { return reserved_; }
  /// Returns the largest number of bytes that were in use at a time, as they were asked for.
  double peak_in_use() const noexcept { return peak_in_use_; }

 private:
  struct Block {
    std::int64_t bytes = 0;
    std::int64_t segment = 0;
    bool is_small = false;
    bool is_free = true;
  };
  using Blocks = std::list<Block>;  // those of a segment are neighbours, in the order of addresses
  struct Use {
    Blocks::iterator block;
    double bytes = 0;
  };

  Blocks::iterator find(std::int64_t bytes, bool is_small);
  Blocks::iterator add_segment(std::int64_t bytes, bool is_small);
  void join_with_next(Blocks::iterator block);

  Blocks blocks_;
  std::unordered_map<std::int64_t, Use> used_;
  std::int64_t segments_ = 0;
  double reserved_ = 0;
  double in_use_ = 0;
  double peak_in_use_ = 0;
};

}  // namespace trireme::predict

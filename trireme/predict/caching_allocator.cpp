// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/caching_allocator.h>

#include <algorithm>
#include <iterator>

namespace trireme::predict {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kGranularity = 512;
constexpr std::int64_t kLargestSmall = kMiB;
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargestOfShared = 10 * kMiB;
constexpr std::int64_t kSharedSegment = 20 * kMiB;
constexpr std::int64_t kSegmentGranularity = 2 * kMiB;

std::int64_t rounded_up(std::int64_t bytes, std::int64_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

std::int64_t segment_for(std::int64_t bytes, bool is_small) {
  if (is_small) return kSmallSegment;
  if (bytes < kLargestOfShared) return kSharedSegment;
  return rounded_up(bytes, kSegmentGranularity);
}

// A block is divided if so much is left that another allocation of its kind can use it.
bool is_divided(std::int64_t left, bool is_small) {
  return is_small ? left >= kGranularity : left > kLargestSmall;
}

}  // namespace

CachingAllocator::Blocks::iterator CachingAllocator::find(std::int64_t bytes, bool is_small) {
  auto best = blocks_.end();
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    if (!block->is_free || block->is_small != is_small || block->bytes < bytes) continue;
    if (best == blocks_.end() || block->bytes < best->bytes) best = block;
  }
  return best;
}

CachingAllocator::Blocks::iterator CachingAllocator::add_segment(std::int64_t bytes,
                                                                 bool is_small) {
  const std::int64_t size = segment_for(bytes, is_small);
  reserved_ += static_cast<double>(size);
  return blocks_.insert(blocks_.end(),
                        {.bytes = size, .segment = segments_++, .is_small = is_small});
}

void CachingAllocator::allocate(std::int64_t name, double bytes) {
  if (bytes <= 0) return;
  const std::int64_t size = rounded_up(static_cast<std::int64_t>(bytes), kGranularity);
  const bool is_small = size <= kLargestSmall;
  auto block = find(size, is_small);
  if (block == blocks_.end()) block = add_segment(size, is_small);
  const std::int64_t left = block->bytes - size;
  if (is_divided(left, is_small)) {
    blocks_.insert(std::next(block),
                   {.bytes = left, .segment = block->segment, .is_small = is_small});
    block->bytes = size;
  }
  block->is_free = false;
  used_[name] = {.block = block, .bytes = bytes};
  in_use_ += bytes;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
}

void CachingAllocator::free(std::int64_t name) {
  const auto found = used_.find(name);
  if (found == used_.end()) return;
  auto block = found->second.block;
  in_use_ -= found->second.bytes;
  used_.erase(found);
  block->is_free = true;
  join_with_next(block);
  if (block != blocks_.begin()) join_with_next(std::prev(block));
}

void CachingAllocator::join_with_next(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next == blocks_.end() || !block->is_free || !next->is_free) return;
  if (block->segment != next->segment) return;
  block->bytes += next->bytes;
  blocks_.erase(next);
}

}  // namespace trireme::predict

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/batch_memory.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::data::detail {
namespace {

// The standard allocator reuses smaller blocks itself.
constexpr std::int64_t kSmallest = std::int64_t{1} << 20;
// The maximum number of free blocks. A loop that takes batch after batch returns one block per
// batch. Blocks beyond this, which a program held for a while and releases together, are freed.
constexpr std::size_t kMostKept = 4;

}  // namespace

class BatchMemory::Pool {
 public:
  ~Pool() {
    for (const auto& [data, bytes] : pieces_) c10::free_cpu(data);
  }

  void* take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
        if (piece->second != bytes) continue;
        void* const data = piece->first;
        pieces_.erase(piece);
        return data;
      }
    }
    return c10::alloc_cpu(bytes);
  }

  void give_back(void* data, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.emplace_back(data, bytes);
      if (pieces_.size() <= kMostKept) return;
      // The block that has been free for longest may have a size that is not needed any more.
      data = pieces_.front().first;
      pieces_.erase(pieces_.begin());
    }
    c10::free_cpu(data);
  }

 private:
  std::mutex mutex_;  // Guards pieces_.
  std::vector<std::pair<void*, std::size_t>> pieces_;
};

BatchMemory::BatchMemory() : pool_(std::make_shared<Pool>()) {}

at::Tensor BatchMemory::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool is_too_large = false;
  for (const std::int64_t size : sizes)
    is_too_large = __builtin_mul_overflow(bytes, size, &bytes) || is_too_large;
  // at::empty reports sizes that are too large.
  if (is_too_large || bytes < kSmallest) return at::empty(sizes, dtype);
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = pool_->take(size);
  // The deleter holds the pool, so tensors may outlive this object.
  return at::from_blob(
      data, sizes, [pool = pool_, size](void* piece) { pool->give_back(piece, size); },
      at::TensorOptions().dtype(dtype));
}

}  // namespace trireme::data::detail

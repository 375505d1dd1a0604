// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/memory_pool.h>

#include <trireme/base/error.h>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace trireme {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// The step by which addresses become usable; each step is a system call.
constexpr std::size_t kStep = std::size_t{32} << 20;
// The number of allocations in one period: several steps of a large model, or many steps of a small
// one.
constexpr int kWhile = 16384;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

MemoryPool::MemoryPool(std::size_t bytes) {
  const std::size_t size = round_up(std::max(bytes, kStep), kStep);
  // Without access rights, the range does not count as memory. The system can then refuse memory
  // when mprotect() makes addresses usable, as it does for malloc. With MAP_NORESERVE it would
  // instead kill the process when a page is touched.
  void* const data =
      ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw ConfigError(
        join_message("cannot reserve ", size >> 20, " MiB of addresses: ", describe_errno(errno)),
        "raise the limit of addresses (ulimit -v)");
  }
  auto* const first = static_cast<std::byte*>(data);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  begin_ = first + (round_up(address, kHugePage) - address);
  end_ = begin_ + size;
  // Unmap the surplus on both sides of the aligned range.
  if (begin_ > first) ::munmap(first, static_cast<std::size_t>(begin_ - first));
  ::munmap(end_, static_cast<std::size_t>(first + size + kHugePage - end_));
  ::madvise(begin_, size, MADV_HUGEPAGE);  // only a hint: kernels without huge pages refuse it
  usable_end_ = touched_end_ = highest_ = highest_before_ = begin_;
  pieces_[begin_] = {.bytes = size, .is_free = true, .requested = 0};
  free_.emplace(size, begin_);
}

MemoryPool::~MemoryPool() { ::munmap(begin_, static_cast<std::size_t>(end_ - begin_)); }

bool MemoryPool::make_usable(const std::byte* end) {
  if (end <= usable_end_) return true;
  const std::size_t more = round_up(static_cast<std::size_t>(end - usable_end_), kStep);
  if (::mprotect(usable_end_, more, PROT_READ | PROT_WRITE) != 0) return false;
  usable_end_ += more;
  return true;
}

void* MemoryPool::allocate(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(end_ - begin_)) return nullptr;
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  const std::lock_guard lock(mutex_);
  const auto best = free_.lower_bound({size, nullptr});
  if (best == free_.end()) return nullptr;
  const auto [its_size, data] = *best;
  if (!make_usable(data + size)) return nullptr;
  free_.erase(best);
  if (its_size > size) {
    pieces_[data + size] = {.bytes = its_size - size, .is_free = true, .requested = 0};
    free_.emplace(its_size - size, data + size);
  }
  pieces_[data] = {.bytes = size, .is_free = false, .requested = bytes};
  note_use(data + size);
  return data;
}

// Counts allocations, and at the end of a period returns the memory above the highest recent use to
// the system.
void MemoryPool::note_use(std::byte* end) {
  highest_ = std::max(highest_, end);
  touched_end_ = std::max(touched_end_, end);
  if (++num_taken_ < kWhile) return;
  // A block that was allocated in an earlier period and is still in use counts too.
  const auto last = std::ranges::find_if(pieces_.rbegin(), pieces_.rend(),
                                         [](const auto& piece) { return !piece.second.is_free; });
  give_back_above(std::max({highest_, highest_before_, last->first + last->second.bytes}));
  highest_before_ = highest_;
  highest_ = begin_;
  num_taken_ = 0;
}

void MemoryPool::give_back_above(std::byte* end) {
  if (end >= touched_end_) return;
  if (return_pages_) {
    return_pages_({end, touched_end_});
  } else {
    ::madvise(end, static_cast<std::size_t>(touched_end_ - end), MADV_DONTNEED);
  }
  touched_end_ = end;
}

MemoryPool::Pieces::iterator MemoryPool::join(Pieces::iterator first, Pieces::iterator second) {
  for (const auto& piece : {first, second}) free_.erase({piece->second.bytes, piece->first});
  first->second.bytes += second->second.bytes;
  pieces_.erase(second);
  free_.emplace(first->second.bytes, first->first);
  return first;
}

void MemoryPool::release(void* data) {
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.find(static_cast<std::byte*>(data));
  if (piece == pieces_.end() || piece->second.is_free) {
    throw InternalError("a memory pool was asked to release a pointer that it has not allocated",
                        "please report this");
  }
  piece->second.is_free = true;
  if (released_) released_({piece->first, piece->first + piece->second.bytes});
  free_.emplace(piece->second.bytes, piece->first);
  if (const auto next = std::next(piece); next != pieces_.end() && next->second.is_free) {
    piece = join(piece, next);
  }
  if (piece != pieces_.begin() && std::prev(piece)->second.is_free) join(std::prev(piece), piece);
}

MemoryPool::Range MemoryPool::whole_pages(const void* data, std::size_t bytes) const {
  if (!owns(data)) return {};
  // Addresses of the range are those of this pool, which may change them.
  std::byte* const first = begin_ + (static_cast<const std::byte*>(data) - begin_);
  const std::lock_guard lock(mutex_);
  auto next = pieces_.upper_bound(first);
  if (next == pieces_.begin()) return {};
  const auto& [start, piece] = *std::prev(next);
  const auto offset = static_cast<std::size_t>(first - start);
  if (piece.is_free || offset > piece.requested || bytes > piece.requested - offset) return {};
  std::byte* const begin = start + round_up(offset, kAlignment);
  // What follows the requested bytes of a block belongs to nobody.
  const std::size_t last = offset + bytes;
  std::byte* const end =
      start + (last == piece.requested ? piece.bytes : last / kAlignment * kAlignment);
  return begin < end ? Range{begin, end} : Range{};
}

std::size_t MemoryPool::extent() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(touched_end_ - begin_);
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/peer_pages.h>

#include <trireme/base/error.h>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

namespace trireme::shm {
namespace {

// Windows begin and end at multiples of this, so that buffers beside each other share one.
constexpr std::uint64_t kUnit = std::uint64_t{64} << 20;
// More windows of a file are not kept.
constexpr std::size_t kMostWindows = 64;

}  // namespace

PeerPages::Window::Window(const Segment& segment, std::uint64_t begin, std::size_t bytes)
    : begin_(begin), bytes_(bytes) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            segment.descriptor(), static_cast<off_t>(begin));
  if (data == MAP_FAILED) {
    throw ConfigError(join_message("cannot map ", bytes >> 20,
                                   " MiB of the tensors of another rank: ", describe_errno(errno)),
                      "raise the limit of address space (ulimit -v)");
  }
  ::madvise(data, bytes, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(data);
}

PeerPages::Window::~Window() {
  // A forked child does not have the window, and may have something else there.
  if (num_forks_ == Segment::num_forks()) ::munmap(data_, bytes_);
}

std::shared_ptr<PeerPages> PeerPages::open(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<PeerPages>>& opened =
      *new std::map<std::string, std::weak_ptr<PeerPages>>;
  const std::lock_guard lock(mutex);
  std::erase_if(opened, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<PeerPages>& known = opened[address];
  if (auto pages = known.lock()) return pages;
  auto pages = std::make_shared<PeerPages>(Segment::open(address, Segment::Filling::kSparse));
  known = pages;
  return pages;
}

std::shared_ptr<const PeerPages::Window> PeerPages::map(std::uint64_t offset, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& window : windows_) {
    if (window->holds(offset, bytes)) return window;
  }
  const std::uint64_t size = segment_.size();
  if (offset > size || bytes > size - offset) {
    throw ConfigError(join_message("another rank says that its tensor lies in bytes ", offset,
                                   " to ", offset + bytes, " of a file of ", size, " bytes"),
                      "run the same version of Trireme on all ranks");
  }
  if (windows_.size() >= kMostWindows) windows_.clear();
  const std::uint64_t begin = offset / kUnit * kUnit;
  const std::uint64_t end = std::min(size, (offset + bytes + kUnit - 1) / kUnit * kUnit);
  windows_.push_back(std::make_shared<const Window>(segment_, begin, end - begin));
  return windows_.back();
}

}  // namespace trireme::shm

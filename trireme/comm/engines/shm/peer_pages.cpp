// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/peer_pages.h>

#include <trireme/base/error.h>

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>

namespace trireme::shm {
namespace {

// Windows begin and end at multiples of this, so that buffers beside each other share one.
constexpr std::uint64_t kUnit = std::uint64_t{64} << 20;
// More windows of a file are not kept.
constexpr std::size_t kMostWindows = 1024;

// The files that are open. A forked child begins with none: windows and descriptors are the
// parent's.
struct OpenedFiles {
  std::mutex mutex;  // guards all
  std::map<std::string, std::weak_ptr<PeerPages>> all;

  static OpenedFiles& instance() {
    static OpenedFiles* const files = [] {
      Segment::prepare_for_forks();  // whose lock is taken while this one is held
      ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                       [] {
                         instance().all.clear();
                         instance().mutex.unlock();
                       });
      return new OpenedFiles;  // forks may come after main
    }();
    return *files;
  }
};

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
  ::madvise(data, bytes, MADV_DONTDUMP);
  data_ = static_cast<std::byte*>(data);
}

PeerPages::Window::~Window() {
  // A forked child does not have the window, and may have something else there.
  if (num_forks_ == Segment::num_forks()) ::munmap(data_, bytes_);
}

std::shared_ptr<PeerPages> PeerPages::open(const std::string& address) {
  OpenedFiles& files = OpenedFiles::instance();
  const std::lock_guard lock(files.mutex);
  auto& opened = files.all;
  std::erase_if(opened, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<PeerPages>& known = opened[address];
  if (auto pages = known.lock()) return pages;
  auto pages = std::make_shared<PeerPages>(Segment::open(address, Segment::Filling::kSparse));
  known = pages;
  return pages;
}

std::shared_ptr<const PeerPages::Window> PeerPages::map(std::uint64_t offset, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto window = windows_.begin(); window != windows_.end(); ++window) {
    if (!(*window)->holds(offset, bytes)) continue;
    windows_.splice(windows_.begin(), windows_, window);
    return windows_.front();
  }
  const std::uint64_t size = segment_.size();
  if (offset > size || bytes > size - offset) {
    throw ConfigError(join_message("another rank says that its tensor lies in bytes ", offset,
                                   " to ", offset + bytes, " of a file of ", size, " bytes"),
                      "run the same version of Trireme on all ranks");
  }
  if (windows_.size() >= kMostWindows) windows_.pop_back();
  const std::uint64_t begin = offset / kUnit * kUnit;
  const std::uint64_t end = std::min(size, (offset + bytes + kUnit - 1) / kUnit * kUnit);
  windows_.push_front(std::make_shared<const Window>(segment_, begin, end - begin));
  return windows_.front();
}

}  // namespace trireme::shm

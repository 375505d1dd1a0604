// SPDX-License-Identifier: Apache-2.0
// The shared pages (shared_pages.h) of another rank, as this process maps them.
#pragma once

#include <trireme/comm/engines/shm/segment.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace trireme::shm {

/// A file of shared pages of another process, or of this one. All groups of a process share what is
/// mapped of it. Thread-safety: safe.
class PeerPages {
 public:
  /// A mapped part of the file. Neither a forked child nor a core dump has it.
  class Window {
   public:
    Window(const Segment& segment, std::uint64_t begin, std::size_t bytes);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    bool holds(std::uint64_t offset, std::size_t bytes) const noexcept {
      return begin_ <= offset && offset - begin_ <= bytes_ && bytes <= bytes_ - (offset - begin_);
    }
    std::byte* at(std::uint64_t offset) const noexcept { return data_ + (offset - begin_); }

   private:
    std::uint64_t begin_;
    std::size_t bytes_;
    std::byte* data_ = nullptr;
    int num_forks_ = Segment::num_forks();
  };

  /// Opens the file with that address, which another rank has sent. It is checked as
  /// Segment::open() does. Throws ConfigError if it cannot be opened or is another file. A forked
  /// child opens the files of its own groups afresh.
  static std::shared_ptr<PeerPages> open(const std::string& address);

  explicit PeerPages(Segment segment) : segment_(std::move(segment)) {}

  /// Returns a window with these bytes. They are mapped as long as the window lives. Throws
  /// ConfigError if they lie beyond the end of the file, or addresses are lacking.
  std::shared_ptr<const Window> map(std::uint64_t offset, std::size_t bytes);

 private:
  const Segment segment_;
  std::mutex mutex_;                                  // guards windows_
  std::list<std::shared_ptr<const Window>> windows_;  // the most recently used first
};

}  // namespace trireme::shm

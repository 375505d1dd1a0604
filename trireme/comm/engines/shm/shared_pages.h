// SPDX-License-Identifier: Apache-2.0
// Shared pages: pages of ordinary memory of this process that other processes map, so that
// collectives read and write them in place.
//
// Memory begins private. A piece that collectives use again and again moves into a file without a
// name (memfd), which takes the place of its pages at the same addresses. A fork makes all such
// pages private again, copied on write, before the child exists: it has the memory of the moment of
// the fork, and neither process sees what the other one writes.
#pragma once

#include <trireme/comm/engines/shm/segment.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace trireme::shm {

/// The shared pages of one range of addresses, such as a memory pool. Thread-safety: safe, and
/// around fork() too. A child that is made by a system call instead of fork() lacks the shared
/// pages: reading them ends it with SIGSEGV.
class SharedPages {
 public:
  struct Range {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
  };

  /// @param all the range, which begins and ends at a page.
  /// @param whole_pages returns the pages in the range that hold `bytes` bytes at `data`, and
  /// nothing else that somebody may write. They are readable and writable. Empty if there are none.
  SharedPages(Range all, std::function<Range(const void* data, std::size_t bytes)> whole_pages);
  /// Must not be called while pages are in use, or while memory of the range is.
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  /// Sets the pages of this process that its groups use in place. Null, the default, if there are
  /// none. Groups that are connected already do not notice.
  static void set_of_process(std::shared_ptr<SharedPages> pages);
  static std::shared_ptr<SharedPages> of_process();

  /// A file that holds pages.
  struct File {
    Segment segment;
    std::string address;       ///< of the segment
    std::uint64_t number = 0;  ///< random; tells files apart
  };

  /// Pages that an operation of several ranks uses in place. They stay shared until then, also if
  /// this process forks. A forked child gets a copy of them. An operation that ends without
  /// finish() has failed: another rank may still read and write the file. So the pages get memory
  /// of their own again.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    ~Use();
    /// Tells that all ranks are done with the pages.
    void finish() noexcept;

   private:
    friend class SharedPages;
    SharedPages* owner_ = nullptr;
    std::list<Range>::iterator place_;
  };

  /// What is known of some bytes.
  enum class State : std::uint32_t {
    kPrivate,    ///< they cannot be shared: they lie elsewhere, or the system refuses
    kCandidate,  ///< they could be
    kShared,
  };
  struct Found {
    State state = State::kPrivate;
    /// The file with the bytes, if they are shared. Bytes in the first and last 4095 may lie
    /// outside; `is_whole` is true if none does.
    std::shared_ptr<const File> file;
    std::uint64_t offset = 0;  ///< of the first byte in the file
    bool is_whole = false;
    Use use;
  };

  /// Returns what is known of these bytes. Shares their pages if they were noted often enough.
  /// Moves them from an earlier file to the current one, so that peers need one file in the end.
  /// Nobody may write to the bytes at the same time.
  Found find(const void* data, std::size_t bytes);

  /// Notes that an operation would have used these bytes in place on all ranks.
  void note(const void* data, std::size_t bytes);

  /// Gives the memory of these pages back to the system. They are private and zero afterwards.
  /// Nobody may use them at the same time.
  void discard(Range range);

  /// Replaces pages that a fork has left as private views of a file, where the content of this
  /// range is not needed any more. The file keeps its memory as long as a page of it is mapped.
  void drop_frozen(Range range) noexcept;

  /// Returns the number of bytes that are shared now.
  std::size_t shared_bytes() const;

  /// The number of times that bytes are noted before they are shared. Sharing takes the time of
  /// about as many operations as it saves afterwards in several dozens.
  static constexpr int kNotes = 8;

 private:
  // An extent that is no private memory without a file. Without `file`, it is copied on write from
  // a file that does not change any more.
  struct Extent {
    std::byte* end = nullptr;
    std::shared_ptr<File> file;
  };
  struct Forks;  // the handlers of pthread_atfork

  std::uint64_t offset_of(const std::byte* data) const noexcept {
    return static_cast<std::uint64_t>(data - all_.begin);
  }
  const std::shared_ptr<File>* file_of(Range range) const;
  std::size_t bytes_in_files() const;
  bool is_used(Range range) const;
  void note_frozen();
  bool share(Range range);
  bool move_to_file(Range range);
  bool move_to_memory(Range range) noexcept;
  void free_place(const File& file, Range range) const noexcept;
  void make_private(Range range) noexcept;
  void assign(Range range, const std::shared_ptr<File>& file);
  void erase(Range range);
  void freeze();
  void begin_child() noexcept;
  void end_fork() noexcept;

  const Range all_;
  const std::function<Range(const void*, std::size_t)> whole_pages_;
  mutable std::mutex mutex_;  // guards all members below
  std::map<std::byte*, Extent> extents_;
  std::shared_ptr<File> current_;
  bool is_refused_ = false;  // the system gives no such file
  int num_waits_ = 0;        // calls before pages move from an earlier file, after it has failed
  // True if extents without a file exist. Set with the mutex held, read without it.
  std::atomic<bool> has_frozen_ = false;
  std::list<Range> uses_;
  struct Noted {
    std::byte* end = nullptr;
    int times = 0;
  };
  std::map<std::byte*, Noted> noted_;
  // Copies of pages in use, for the child of the fork that is going on.
  struct Copy {
    Range range;
    void* data = nullptr;
  };
  std::list<Copy> copies_;
};

}  // namespace trireme::shm

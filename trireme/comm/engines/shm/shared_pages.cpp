// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/shared_pages.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <utility>

namespace trireme::shm {
namespace {

// Pages move in pieces of this size. Both copies exist only of one piece at a time.
constexpr std::size_t kPiece = std::size_t{16} << 20;
// Pages are shared only if this much memory is left, with what sharing and a later fork can take.
constexpr std::int64_t kSpare = 4 * std::int64_t{kPiece};
// The number of places that are remembered with the number of their uses.
constexpr std::size_t kMostNoted = 4096;

std::size_t length_of(SharedPages::Range range) {
  return static_cast<std::size_t>(range.end - range.begin);
}

// Returns memory without a file, or null. A range of the caller's is replaced if `at` is not null.
void* map_private(void* at, std::size_t bytes) {
  const int fixed = at == nullptr ? 0 : MAP_FIXED;
  void* const data =
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

bool move_mapping(void* from, SharedPages::Range to) {
  const std::size_t bytes = length_of(to);
  if (::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to.begin) == MAP_FAILED) {
    return false;
  }
  ::madvise(to.begin, bytes, MADV_HUGEPAGE);
  return true;
}

bool write_all(int fd, const std::byte* from, std::size_t bytes, std::uint64_t at) {
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd, from, bytes, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    from += written;
    at += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

// All objects of the process, which a fork locks. The lock of segments is taken last.
struct SharedPages::Forks {
  std::mutex of_process_mutex;  // guards of_process
  std::shared_ptr<SharedPages> of_process;
  std::mutex mutex;  // guards all
  std::set<SharedPages*> all;

  static Forks& instance() {
    static Forks* const forks = [] {
      Segment::prepare_for_forks();
      ::pthread_atfork([] { instance().prepare(); }, [] { instance().after_in_parent(); },
                       [] { instance().after_in_child(); });
      return new Forks;  // forks may come after main
    }();
    return *forks;
  }

  void prepare() {
    of_process_mutex.lock();
    mutex.lock();
    for (SharedPages* const pages : all) {
      pages->mutex_.lock();
      pages->freeze();
    }
  }
  void after_in_parent() {
    for (SharedPages* const pages : all) {
      pages->end_fork();
      pages->mutex_.unlock();
    }
    mutex.unlock();
    of_process_mutex.unlock();
  }
  void after_in_child() {
    for (SharedPages* const pages : all) {
      pages->begin_child();
      pages->mutex_.unlock();
    }
    mutex.unlock();
    of_process_mutex.unlock();
  }
};

SharedPages::SharedPages(Range all, std::function<Range(const void*, std::size_t)> whole_pages)
    : all_(all), whole_pages_(std::move(whole_pages)) {
  Forks& forks = Forks::instance();
  const std::lock_guard lock(forks.mutex);
  forks.all.insert(this);
}

SharedPages::~SharedPages() {
  Forks& forks = Forks::instance();
  const std::lock_guard lock(forks.mutex);
  forks.all.erase(this);
}

void SharedPages::set_of_process(std::shared_ptr<SharedPages> pages) {
  Forks& forks = Forks::instance();
  const std::lock_guard lock(forks.of_process_mutex);
  forks.of_process = std::move(pages);
}

std::shared_ptr<SharedPages> SharedPages::of_process() {
  Forks& forks = Forks::instance();
  const std::lock_guard lock(forks.of_process_mutex);
  return forks.of_process;
}

SharedPages::Use::Use(Use&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), place_(other.place_) {}

SharedPages::Use& SharedPages::Use::operator=(Use&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(place_, other.place_);
  return *this;
}

void SharedPages::Use::finish() noexcept {
  if (owner_ == nullptr) return;
  const std::lock_guard lock(owner_->mutex_);
  owner_->uses_.erase(place_);
  owner_ = nullptr;
}

SharedPages::Use::~Use() {
  if (owner_ == nullptr) return;
  const std::lock_guard lock(owner_->mutex_);
  const Range range = *place_;
  owner_->uses_.erase(place_);
  owner_->make_private(range);
}

SharedPages::Found SharedPages::find(const void* data, std::size_t bytes) {
  Found found;
  const Range range = whole_pages_(data, bytes);
  if (range.begin == nullptr) return found;
  const auto* const first = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  if (is_refused_) return found;
  found.state = State::kCandidate;
  const std::shared_ptr<File>* file = file_of(range);
  if (file == nullptr) {
    const auto noted = noted_.find(range.begin);
    if (noted == noted_.end() || noted->second.end < range.end || noted->second.times < kNotes) {
      return found;
    }
    noted_.erase(noted);
    if (share(range)) file = file_of(range);
    if (file == nullptr) return found;
  } else if (*file != current_ && --num_waits_ <= 0) {
    // Peers keep one file of a rank. So pages of an earlier one move, unless another operation uses
    // them. Where only a part has moved, the bytes are shared later.
    num_waits_ = share(range) ? 0 : kNotes;
    file = file_of(range);
    if (file == nullptr) return found;
  }
  found.state = State::kShared;
  found.file = *file;
  found.offset = offset_of(first);
  found.is_whole = range.begin <= first && first + bytes <= range.end;
  found.use.owner_ = this;
  found.use.place_ = uses_.insert(uses_.end(), range);
  return found;
}

void SharedPages::note(const void* data, std::size_t bytes) {
  const Range range = whole_pages_(data, bytes);
  if (range.begin == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (noted_.size() >= kMostNoted) noted_.clear();
  Noted& noted = noted_[range.begin];
  noted.end = std::max(noted.end, range.end);
  ++noted.times;
}

std::size_t SharedPages::shared_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_in_files();
}

std::size_t SharedPages::bytes_in_files() const {
  std::size_t bytes = 0;
  for (const auto& [begin, extent] : extents_) {
    if (extent.file) bytes += length_of({begin, extent.end});
  }
  return bytes;
}

// Returns the file that holds all of these pages, or null.
const std::shared_ptr<SharedPages::File>* SharedPages::file_of(Range range) const {
  const auto next = extents_.upper_bound(range.begin);
  if (next == extents_.begin()) return nullptr;
  const Extent& extent = std::prev(next)->second;
  return extent.file && range.end <= extent.end ? &extent.file : nullptr;
}

bool SharedPages::is_used(Range range) const {
  return std::ranges::any_of(
      uses_, [&](const Range& use) { return use.begin < range.end && range.begin < use.end; });
}

// Gives the memory of a place of the file back, which nobody needs any more.
void SharedPages::free_place(const File& file, Range range) const noexcept {
  ::fallocate(file.segment.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset_of(range.begin)), static_cast<off_t>(length_of(range)));
}

// Moves the pages that are not in the current file into it. Returns false if the system refuses, or
// if another operation uses pages of an earlier file.
bool SharedPages::share(Range range) {
  // A system that overcommits memory ends a process when it has none left. After a fork, pages that
  // are written are copied while those in the file stay. So that memory must be there too.
  const auto needed = static_cast<std::int64_t>(length_of(range) + bytes_in_files());
  if (free_memory() < kSpare + needed) return false;
  if (!current_) {
    try {
      auto file = std::make_shared<File>();
      file->segment =
          Segment::create(Segment::Kind::kAnonymous, length_of(all_), Segment::Filling::kSparse);
      file->address = file->segment.address();
      std::random_device random;
      file->number = (std::uint64_t{random()} << 32) | random() | 1;
      current_ = std::move(file);
    } catch (const std::exception&) {
      is_refused_ = true;  // collectives copy then, as they do with other memory
      return false;
    }
  }
  for (std::byte* at = range.begin; at < range.end;) {
    const auto next = extents_.upper_bound(at);
    std::byte* end = next == extents_.end() ? range.end : std::min(range.end, next->first);
    bool is_there = false;
    if (next != extents_.begin() && std::prev(next)->second.end > at) {
      const Extent& extent = std::prev(next)->second;
      end = std::min(range.end, extent.end);
      is_there = extent.file == current_;
    }
    if (!is_there) {
      end = std::min(end, at + kPiece);
      if (!move_to_file({at, end})) return false;
    }
    at = end;
  }
  return true;
}

bool SharedPages::move_to_file(Range range) {
  if (is_used(range)) return false;
  const int fd = current_->segment.descriptor();
  const std::uint64_t offset = offset_of(range.begin);
  // Writing reports a lack of memory for the file as an error, where the system has a limit that it
  // can report. Touching a mapped page would be a fatal signal.
  if (!write_all(fd, range.begin, length_of(range), offset) ||
      ::mmap(range.begin, length_of(range), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    free_place(*current_, range);
    return false;
  }
  ::madvise(range.begin, length_of(range), MADV_DONTFORK);
  // No other process but the peers, which are done, has these pages of an earlier file.
  if (const auto* const earlier = file_of(range)) free_place(**earlier, range);
  assign(range, current_);
  return true;
}

// Removes what is known of these pages.
void SharedPages::erase(Range range) {
  auto next = extents_.lower_bound(range.begin);
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    if (before->second.end > range.begin) {
      const Extent rest = before->second;
      before->second.end = range.begin;
      if (rest.end > range.end) extents_[range.end] = rest;
    }
  }
  next = extents_.lower_bound(range.begin);
  while (next != extents_.end() && next->first < range.end) {
    const Extent rest = next->second;
    next = extents_.erase(next);
    if (rest.end > range.end) {
      extents_[range.end] = rest;
      break;
    }
  }
}

void SharedPages::assign(Range range, const std::shared_ptr<File>& file) {
  erase(range);
  const auto next = extents_.find(range.end);
  if (next != extents_.end() && next->second.file == file) {
    range.end = next->second.end;
    extents_.erase(next);
  }
  const auto here = extents_.lower_bound(range.begin);
  if (here != extents_.begin()) {
    Extent& before = std::prev(here)->second;
    if (before.end == range.begin && before.file == file) {
      before.end = range.end;
      return;
    }
  }
  extents_[range.begin] = {.end = range.end, .file = file};
}

// Copies shared pages to memory without a file. Returns false, and changes nothing, if there is no
// memory.
bool SharedPages::move_to_memory(Range range) noexcept {
  void* const copy = map_private(nullptr, length_of(range));
  if (copy == nullptr) return false;
  std::memcpy(copy, range.begin, length_of(range));
  if (move_mapping(copy, range)) return true;
  ::munmap(copy, length_of(range));
  return false;
}

// Gives shared pages memory without a file, in pieces, so that little exists twice.
void SharedPages::make_private(Range range) noexcept {
  std::list<std::pair<Range, std::shared_ptr<File>>> shared;
  auto at = extents_.upper_bound(range.begin);
  if (at != extents_.begin()) --at;
  for (; at != extents_.end() && at->first < range.end; ++at) {
    const Range part = {std::max(at->first, range.begin), std::min(at->second.end, range.end)};
    if (at->second.file && part.begin < part.end) shared.emplace_back(part, at->second.file);
  }
  for (const auto& [part, file] : shared) {
    for (std::byte* begin = part.begin; begin < part.end;) {
      const auto left = static_cast<std::size_t>(part.end - begin);
      const Range piece = {begin, begin + std::min(left, kPiece)};
      begin = piece.end;
      if (move_to_memory(piece)) {
        erase(piece);
        if (!is_used(piece)) free_place(*file, piece);
      } else if (::mmap(piece.begin, length_of(piece), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_FIXED, file->segment.descriptor(),
                        static_cast<off_t>(offset_of(piece.begin))) != MAP_FAILED) {
        // Without memory for a copy, pages are copied when this process writes to them. It takes no
        // memory now.
        assign(piece, nullptr);
      }
    }
  }
  note_frozen();
  // The other rank may write to this place of the file later on, so it is not used again.
  current_.reset();
}

void SharedPages::discard(Range range) {
  const std::lock_guard lock(mutex_);
  bool has_files = false;
  auto at = extents_.upper_bound(range.begin);
  if (at != extents_.begin()) --at;
  for (; at != extents_.end() && at->first < range.end; ++at) {
    const Range part = {std::max(at->first, range.begin), std::min(at->second.end, range.end)};
    if (part.begin >= part.end) continue;
    has_files = true;
    if (at->second.file) free_place(*at->second.file, part);
  }
  if (has_files && map_private(range.begin, length_of(range)) != nullptr) {
    ::madvise(range.begin, length_of(range), MADV_HUGEPAGE);
    erase(range);
  } else {
    ::madvise(range.begin, length_of(range), MADV_DONTNEED);
  }
  note_frozen();
}

void SharedPages::note_frozen() {
  has_frozen_ = std::ranges::any_of(extents_, [](const auto& entry) { return !entry.second.file; });
}

void SharedPages::drop_frozen(Range range) noexcept {
  if (!has_frozen_) return;
  const std::lock_guard lock(mutex_);
  std::list<Range> frozen;
  auto at = extents_.upper_bound(range.begin);
  if (at != extents_.begin()) --at;
  for (; at != extents_.end() && at->first < range.end; ++at) {
    const Range part = {std::max(at->first, range.begin), std::min(at->second.end, range.end)};
    if (!at->second.file && part.begin < part.end) frozen.push_back(part);
  }
  if (frozen.empty()) return;
  for (const Range& part : frozen) {
    if (map_private(part.begin, length_of(part)) == nullptr) continue;  // they stay as they are
    ::madvise(part.begin, length_of(part), MADV_HUGEPAGE);
    erase(part);
  }
  note_frozen();
}

// Makes all shared pages private, copied on write from their files, which nobody writes to any
// more. Pages in use stay as they are, and are copied for the child.
void SharedPages::freeze() {
  std::list<std::pair<Range, std::shared_ptr<File>>> shared;
  for (const auto& [begin, extent] : extents_) {
    if (extent.file) shared.emplace_back(Range{begin, extent.end}, extent.file);
  }
  for (const auto& [range, file] : shared) {
    for (std::byte* at = range.begin; at < range.end;) {
      // The next part that is in use as a whole, or not at all.
      std::byte* end = range.end;
      bool is_used = false;
      for (const Range& use : uses_) {
        if (use.begin <= at && at < use.end) is_used = true;
        for (std::byte* const edge : {use.begin, use.end}) {
          if (edge > at) end = std::min(end, edge);
        }
      }
      const Range part = {at, end};
      at = end;
      if (is_used) {
        // Without memory for the copy, the child lacks these pages.
        void* const copy = map_private(nullptr, length_of(part));
        if (copy == nullptr) continue;
        std::memcpy(copy, part.begin, length_of(part));
        copies_.push_back({.range = part, .data = copy});
      } else if (::mmap(part.begin, length_of(part), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_FIXED, file->segment.descriptor(),
                        static_cast<off_t>(offset_of(part.begin))) != MAP_FAILED) {
        assign(part, nullptr);
      }
    }
  }
  note_frozen();
  current_.reset();
}

void SharedPages::end_fork() noexcept {
  for (const Copy& copy : copies_) ::munmap(copy.data, length_of(copy.range));
  copies_.clear();
}

void SharedPages::begin_child() noexcept {
  for (const Copy& copy : copies_) move_mapping(copy.data, copy.range);
  copies_.clear();
  uses_.clear();
  noted_.clear();
  std::erase_if(extents_, [](const auto& entry) { return entry.second.file != nullptr; });
}

}  // namespace trireme::shm

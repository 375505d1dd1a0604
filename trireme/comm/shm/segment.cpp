// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm/segment.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

namespace trireme::shm {
namespace {

// Ranks lock those below.
constexpr int kMakersByte = 1 << 20;

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void check_dev_shm(std::size_t bytes) {
  const auto free_bytes = static_cast<std::size_t>(free_shared_memory().value_or(0));
  if (free_bytes >= bytes) return;
  throw ConfigError(
      join_message("/dev/shm has ", mebibytes(free_bytes),
                   " MiB free, the shared-memory engine needs ", mebibytes(bytes), " MiB"),
      "make it larger (containers: --shm-size or --ipc=host), or choose TRIREME_ENGINE=gloo");
}

// The kernel does not refuse memory that it lacks: it kills a process that asks for it.
void check_memory(std::size_t bytes) {
  const auto free_bytes = static_cast<std::size_t>(free_memory());
  if (free_bytes >= bytes) return;
  throw ConfigError(
      join_message("this process can get ", mebibytes(free_bytes),
                   " MiB of memory, the shared-memory engine needs ", mebibytes(bytes), " MiB"),
      "free memory, raise the memory limit of the container, or choose "
      "TRIREME_ENGINE=gloo");
}

// Reserves memory now: a page that is missing later is a fatal signal. In pieces, for older kernels
// give up a whole request when any signal comes.
bool reserve(int fd, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 24;
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t length = std::min(kPiece, bytes - begin);
    if (::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(length)) == 0) {
      begin += length;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// The whole file, where `byte` is negative.
struct flock lock_of(int byte) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = std::max(byte, 0);
  lock.l_len = byte < 0 ? 0 : 1;
  return lock;
}

// A file that has its name for long was left by a rank 0 that was killed before all had opened it:
// nobody holds a lock on it then.
void remove_leftovers() {
  constexpr std::chrono::minutes kOld{1};
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", failure)) {
    if (!entry.path().filename().string().starts_with("trireme-")) continue;
    if (std::filesystem::file_time_type::clock::now() - entry.last_write_time(failure) < kOld) {
      continue;
    }
    const UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    struct flock lock = lock_of(-1);
    if (file && ::fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) {
      ::unlink(entry.path().c_str());
    }
  }
}

// A forked child inherits descriptors, and with them the locks that say that the parent lives: it
// closes its copies at once.
class OpenDescriptors {
 public:
  static OpenDescriptors& instance() {
    static OpenDescriptors* const descriptors = [] {
      ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                       [] {
                         for (const int fd : std::exchange(instance().open_, {})) ::close(fd);
                         ++num_forks;
                         instance().mutex_.unlock();
                       });
      return new OpenDescriptors;  // outlives every Segment
    }();
    return *descriptors;
  }
  void add(int fd) {
    const std::lock_guard lock(mutex_);
    open_.insert(fd);
  }
  void close(int fd) {
    const std::lock_guard lock(mutex_);
    if (open_.erase(fd) != 0) ::close(fd);
  }

  static inline std::atomic<int> num_forks = 0;

 private:
  std::mutex mutex_;
  std::set<int> open_;
};

}  // namespace

struct Segment::Mapping {
  std::byte* data = nullptr;
  std::size_t size = 0;
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) ::munmap(data, size);
  }
};

struct Segment::Descriptor {
  const int fd;
  explicit Descriptor(int opened) : fd(opened) {
    if (fd >= 0) OpenDescriptors::instance().add(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) OpenDescriptors::instance().close(fd);
  }
};

struct Segment::Name {
  std::string path;
  explicit Name(std::string name) : path(std::move(name)) {}
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() { remove(); }
  void remove() noexcept {
    if (!path.empty()) ::unlink(path.c_str());
    path.clear();
  }
};

Segment Segment::create(Kind kind, std::size_t bytes) {
  Segment segment;
  if (kind == Kind::kNamed) check_dev_shm(bytes);
  check_memory(bytes);
  if (kind == Kind::kAnonymous) {
    segment.descriptor_ = std::make_shared<Descriptor>(::memfd_create("trireme", MFD_CLOEXEC));
    segment.path_ = join_message("/proc/", ::getpid(), "/fd/", segment.descriptor_->fd);
  } else {
    remove_leftovers();
    std::random_device random;
    segment.path_ =
        join_message("/dev/shm/trireme-", ::getpid(), "-", std::hex, random(), random());
    segment.descriptor_ = std::make_shared<Descriptor>(
        ::open(segment.path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (segment.descriptor_->fd >= 0) {
      segment.name_ = std::make_shared<Name>(segment.path_);
      segment.lock(kMakersByte);
    }
  }
  if (segment.descriptor_->fd < 0) {
    throw ConfigError(join_message("cannot make shared memory: ", describe_errno(errno)),
                      "allow memfd_create and /dev/shm, or choose TRIREME_ENGINE=gloo");
  }
  if (::ftruncate(segment.descriptor_->fd, static_cast<off_t>(bytes)) != 0 ||
      !reserve(segment.descriptor_->fd, bytes)) {
    throw ConfigError(join_message("cannot reserve ", mebibytes(bytes),
                                   " MiB of shared memory: ", describe_errno(errno)),
                      "free memory, raise the memory limit of the container, or choose "
                      "TRIREME_ENGINE=gloo");
  }
  segment.mapping_ = map(segment.descriptor_->fd, segment.path_);
  return segment;
}

Segment Segment::open(const std::string& path) {
  Segment segment;
  segment.path_ = path;
  segment.descriptor_ = std::make_shared<Descriptor>(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (segment.descriptor_->fd < 0) {
    throw ConfigError(
        join_message("cannot open shared memory ", path, ": ", describe_errno(errno)),
        "all ranks need the same user and, in containers, a shared process namespace or /dev/shm");
  }
  segment.mapping_ = map(segment.descriptor_->fd, path);
  return segment;
}

std::shared_ptr<Segment::Mapping> Segment::map(int fd, const std::string& path) {
  using Key = std::pair<dev_t, ino_t>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<Mapping>> mappings;
  struct stat status = {};
  if (::fstat(fd, &status) != 0) {
    throw ConfigError(join_message("cannot read ", path, ": ", describe_errno(errno)),
                      "choose TRIREME_ENGINE=gloo");
  }
  const std::lock_guard lock(mutex);
  std::erase_if(mappings, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Mapping>& known = mappings[{status.st_dev, status.st_ino}];
  if (auto mapping = known.lock()) return mapping;
  auto mapping = std::make_shared<Mapping>();
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) {
    throw ConfigError(join_message("cannot map ", mebibytes(size),
                                   " MiB of shared memory: ", describe_errno(errno)),
                      "raise the limit of address space (ulimit -v), or choose "
                      "TRIREME_ENGINE=gloo");
  }
  mapping->data = static_cast<std::byte*>(data);
  mapping->size = size;
  known = mapping;
  return mapping;
}

void Segment::unlink() noexcept {
  if (name_) name_->remove();
}

std::byte* Segment::data() const noexcept { return mapping_->data; }
std::size_t Segment::size() const noexcept { return mapping_->size; }

void Segment::lock(int byte) const {
  struct flock lock = lock_of(byte);
  if (::fcntl(descriptor_->fd, F_OFD_SETLK, &lock) != 0) {
    throw InternalError(join_message("cannot lock byte ", byte, " of shared memory ", path_, ": ",
                                     describe_errno(errno)),
                        "this is a defect in Trireme; please report it");
  }
}

int Segment::num_forks() noexcept {
  return OpenDescriptors::num_forks.load(std::memory_order_relaxed);
}

bool Segment::is_locked(int byte) const {
  struct flock lock = lock_of(byte);
  return ::fcntl(descriptor_->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace trireme::shm

// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/segment.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace trireme::shm {
namespace {

// The byte that the maker of a segment locks. Ranks lock bytes below it.
constexpr int kMakersByte = 1 << 20;

// Opening a file with these flags neither blocks nor has side effects, whatever the path names.
constexpr int kOpenFlags = O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

// The data after the bytes of a segment.
struct Trailer {
  std::array<std::uint64_t, 2> number;  // random
  std::uint64_t bytes;
};

// Returns the position of the trailer. The file ends with it.
std::size_t trailer_at(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}
std::size_t file_bytes(std::size_t bytes) { return trailer_at(bytes) + sizeof(Trailer); }

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void check_dev_shm(std::size_t bytes) {
  const auto free_bytes = static_cast<std::size_t>(free_shared_memory().value_or(0));
  if (free_bytes >= bytes) return;
  throw ConfigError(
      join_message("/dev/shm has ", mebibytes(free_bytes),
                   " MiB free, the shared-memory engine needs ", mebibytes(bytes), " MiB"),
      "make it larger (containers: --shm-size or --ipc=host), or choose TRIREME_ENGINE=gloo");
}

// The kernel does not refuse a request for more memory than there is. It kills the process later.
void check_memory(std::size_t bytes) {
  const auto free_bytes = static_cast<std::size_t>(free_memory());
  if (free_bytes >= bytes) return;
  throw ConfigError(
      join_message("this process can get ", mebibytes(free_bytes),
                   " MiB of memory, the shared-memory engine needs ", mebibytes(bytes), " MiB"),
      "free memory, raise the memory limit of the container, or choose "
      "TRIREME_ENGINE=gloo");
}

// The kernel ends a process that makes a file longer than its limit.
void check_file_size(std::size_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= bytes) {
    return;
  }
  throw ConfigError(join_message("this process may make files of ", mebibytes(limit.rlim_cur),
                                 " MiB, shared tensors need one of ", mebibytes(bytes), " MiB"),
                    "raise the limit of file sizes (ulimit -f)");
}

// Reserves memory now, because a page that is missing later is a fatal signal. Reserves it in
// pieces, because older kernels abandon a whole request when any signal arrives.
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

// Returns a lock of one byte, or of the whole file if `byte` is negative.
struct flock lock_of(int byte) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = std::max(byte, 0);
  lock.l_len = byte < 0 ? 0 : 1;
  return lock;
}

constexpr const char* kMemoryName = "trireme";
constexpr std::string_view kNamePrefix = "/dev/shm/trireme-";

// Removes files of runs that were killed. A rank 0 that is killed before all ranks have opened the
// file leaves it behind. Such a file has had its name for more than a minute, and nobody holds a
// lock on it. Files of other users are not touched, even by root.
void remove_leftovers() {
  constexpr std::chrono::minutes kOld{1};
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", failure)) {
    const std::string path = entry.path().string();
    struct stat status = {};
    if (!path.starts_with(kNamePrefix) || ::lstat(path.c_str(), &status) != 0 ||
        !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
        std::chrono::system_clock::now() -
                std::chrono::system_clock::from_time_t(status.st_mtim.tv_sec) <
            kOld) {
      continue;
    }
    const UniqueFd file(::open(path.c_str(), kOpenFlags | O_NOFOLLOW));
    struct stat opened = {};
    struct flock lock = lock_of(-1);
    if (file && ::fstat(file.get(), &opened) == 0 && opened.st_dev == status.st_dev &&
        opened.st_ino == status.st_ino && ::fcntl(file.get(), F_OFD_GETLK, &lock) == 0 &&
        lock.l_type == F_UNLCK) {
      ::unlink(path.c_str());
    }
  }
}

// A forked child inherits descriptors, and with them the locks that show that the parent lives. So
// it closes its copies at once.
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
  // Holds the lock, so that no fork comes between opening and recording. The child would keep the
  // descriptor.
  template <typename Open>
  int add(const Open& open) {
    const std::lock_guard lock(mutex_);
    const int fd = open();
    if (fd >= 0) open_.insert(fd);
    return fd;
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

struct Segment::Descriptor {
  const int fd;  // negative where `open` gave none, with the cause in errno
  template <typename Open>
  explicit Descriptor(const Open& open) : fd(OpenDescriptors::instance().add(open)) {}
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

// Identifies a segment among all other files.
struct Segment::Identity {
  std::string path;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  Trailer trailer = {};

  static std::optional<Identity> parse(const std::string& address) {
    Identity identity;
    TextReader text(address);
    auto& [number, bytes] = identity.trailer;
    text >> identity.path >> identity.device >> identity.inode >> bytes >> number[0] >> number[1];
    constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // sums with it must not overflow
    if (!text || bytes > kMost || !is_path_of_ours(identity.path)) return std::nullopt;
    return identity;
  }

  // Returns whether the path is `/proc/<number>/fd/<number>`, or a name that create() gives.
  static bool is_path_of_ours(const std::string& path) {
    const std::string_view text = path;
    if (text.starts_with(kNamePrefix)) {
      return text.find('/', kNamePrefix.size()) == std::string_view::npos;
    }
    constexpr std::string_view kProc = "/proc/";
    constexpr std::string_view kDescriptors = "/fd/";
    constexpr std::string_view kDigits = "0123456789";
    const std::size_t process_end = text.find_first_not_of(kDigits, kProc.size());
    return text.starts_with(kProc) && process_end != std::string_view::npos &&
           process_end > kProc.size() && text.substr(process_end).starts_with(kDescriptors) &&
           text.size() > process_end + kDescriptors.size() &&
           text.find_first_not_of(kDigits, process_end + kDescriptors.size()) ==
               std::string_view::npos;
  }

  // Returns why an open file is not the expected memory; empty if it is.
  std::string difference(int fd) const {
    struct stat status = {};
    if (::fstat(fd, &status) != 0) return describe_errno(errno);
    if (!S_ISREG(status.st_mode)) return "it is no memory";
    if (status.st_uid != ::geteuid()) {
      return join_message("it belongs to user ", status.st_uid, ", and this process to user ",
                          ::geteuid());
    }
    Trailer found = {};
    const auto at = static_cast<off_t>(trailer_at(trailer.bytes));
    if (status.st_dev != device || status.st_ino != inode ||
        static_cast<std::uint64_t>(status.st_size) != file_bytes(trailer.bytes) ||
        ::pread(fd, &found, sizeof(found), at) != static_cast<ssize_t>(sizeof(found)) ||
        found.number != trailer.number || found.bytes != trailer.bytes) {
      return "it is another one than rank 0 has made";
    }
    return "";
  }
};

struct Segment::Mapping {
  const Identity identity;
  std::byte* data = nullptr;
  explicit Mapping(Identity of) : identity(std::move(of)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) ::munmap(data, file_bytes(identity.trailer.bytes));
  }
};

Segment Segment::create(Kind kind, std::size_t bytes, Filling filling) {
  Segment segment;
  const bool is_sparse = filling == Filling::kSparse;
  if (is_sparse) {
    check_file_size(file_bytes(bytes));
  } else {
    if (kind == Kind::kNamed) check_dev_shm(bytes);
    check_memory(bytes);
  }
  std::random_device random;
  const auto draw = [&] { return (std::uint64_t{random()} << 32) | random(); };
  if (kind == Kind::kAnonymous) {
    segment.descriptor_ =
        std::make_shared<Descriptor>([] { return ::memfd_create(kMemoryName, MFD_CLOEXEC); });
    segment.path_ = join_message("/proc/", ::getpid(), "/fd/", segment.descriptor_->fd);
  } else {
    remove_leftovers();
    segment.path_ = join_message(kNamePrefix, ::getpid(), "-", std::hex, draw());
    segment.descriptor_ = std::make_shared<Descriptor>(
        [&] { return ::open(segment.path_.c_str(), kOpenFlags | O_CREAT | O_EXCL, 0600); });
    if (segment.descriptor_->fd >= 0) {
      segment.name_ = std::make_shared<Name>(segment.path_);
      segment.lock(kMakersByte);
    }
  }
  const int fd = segment.descriptor_->fd;
  if (fd < 0) {
    throw ConfigError(join_message("cannot make shared memory: ", describe_errno(errno)),
                      "allow memfd_create and /dev/shm, or choose TRIREME_ENGINE=gloo");
  }
  const Trailer trailer = {.number = {draw(), draw()}, .bytes = bytes};
  const auto at = static_cast<off_t>(trailer_at(bytes));
  struct stat status = {};
  if (::ftruncate(fd, static_cast<off_t>(file_bytes(bytes))) != 0 ||
      (!is_sparse && !reserve(fd, file_bytes(bytes))) ||
      ::pwrite(fd, &trailer, sizeof(trailer), at) != static_cast<ssize_t>(sizeof(trailer)) ||
      ::fstat(fd, &status) != 0) {
    throw ConfigError(join_message("cannot reserve ", mebibytes(bytes),
                                   " MiB of shared memory: ", describe_errno(errno)),
                      "free memory, raise the memory limit of the container, or choose "
                      "TRIREME_ENGINE=gloo");
  }
  segment.mapping_ = map(
      fd,
      {.path = segment.path_, .device = status.st_dev, .inode = status.st_ino, .trailer = trailer},
      filling);
  return segment;
}

Segment Segment::open(const std::string& address, Filling filling) {
  constexpr std::string_view kHint =
      "all ranks need the same user and, in containers, a shared process namespace or /dev/shm";
  const auto identity = Identity::parse(address);
  if (!identity) {
    throw ConfigError(
        join_message("'", address.substr(0, 200),
                     "' is no address of shared memory that a rank of "
                     "Trireme has made"),
        "another program writes into the store of this run, or the ranks run different versions");
  }
  const std::string& path = identity->path;
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(join_message("cannot open shared memory ", path, ": ", why), kHint);
  };
  const bool is_named = path.starts_with(kNamePrefix);
  if (!is_named) {
    // In another process namespace the number may belong to another process, whose descriptor may
    // be anything.
    std::error_code failure;
    const std::string target = std::filesystem::read_symlink(path, failure).string();
    if (failure) refuse(failure.message());
    if (!target.starts_with(std::string("/memfd:") + kMemoryName)) {
      refuse("it is no memory; the process of that number is not rank 0");
    }
  }
  Segment segment;
  segment.path_ = path;
  segment.descriptor_ = std::make_shared<Descriptor>(
      [&] { return ::open(path.c_str(), kOpenFlags | (is_named ? O_NOFOLLOW : 0)); });
  if (segment.descriptor_->fd < 0) refuse(describe_errno(errno));
  if (const std::string why = identity->difference(segment.descriptor_->fd); !why.empty()) {
    refuse(why);
  }
  segment.mapping_ = map(segment.descriptor_->fd, *identity, filling);
  return segment;
}

std::shared_ptr<Segment::Mapping> Segment::map(int fd, const Identity& identity, Filling filling) {
  if (filling == Filling::kSparse) return std::make_shared<Mapping>(identity);
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<Mapping>> mappings;
  const std::lock_guard lock(mutex);
  std::erase_if(mappings, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Mapping>& known = mappings[{identity.device, identity.inode}];
  if (auto mapping = known.lock()) return mapping;
  auto mapping = std::make_shared<Mapping>(identity);
  const std::size_t size = file_bytes(identity.trailer.bytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) {
    throw ConfigError(join_message("cannot map ", mebibytes(size),
                                   " MiB of shared memory: ", describe_errno(errno)),
                      "raise the limit of address space (ulimit -v), or choose "
                      "TRIREME_ENGINE=gloo");
  }
  mapping->data = static_cast<std::byte*>(data);
  known = mapping;
  return mapping;
}

std::string Segment::address() const {
  const Identity& identity = mapping_->identity;
  const auto& [number, bytes] = identity.trailer;
  return join_message(path_, ' ', identity.device, ' ', identity.inode, ' ', bytes, ' ', number[0],
                      ' ', number[1]);
}

void Segment::unlink() noexcept {
  if (name_) name_->remove();
}

std::byte* Segment::data() const noexcept { return mapping_->data; }
std::size_t Segment::size() const noexcept { return mapping_->identity.trailer.bytes; }
int Segment::descriptor() const noexcept { return descriptor_->fd; }

void Segment::prepare_for_forks() { OpenDescriptors::instance(); }

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

// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>

#include <trireme/base/text.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <system_error>

namespace trireme {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

bool is_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored));
}

// Returns the descriptor that a path such as /dev/stdout or /dev/fd/3 refers to.
std::optional<int> find_own_stream(const fs::path& path) {
  const std::string& name = path.native();
  if (name == "/dev/stdout") return STDOUT_FILENO;
  if (name == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (name.starts_with(folder)) return parse_number<int>(name.substr(folder.size()));
  }
  return std::nullopt;
}

// Returns a hidden name in the same folder. It stays within the 255 bytes that a name may have.
fs::path hidden_sibling(const fs::path& file) {
  constexpr std::size_t kLongest = 200;
  std::random_device source;
  const std::uint64_t number = std::uint64_t{source()} << 32U | source();
  return folder_of(file) /
         join_message(".", file.filename().string().substr(0, kLongest), ".", number, ".tmp");
}

// Gives the new file the permissions, owner and group of the old one, as far as the system permits.
void take_over(int file, const struct stat& earlier) {
  mode_t mode = earlier.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
  if (::fchown(file, earlier.st_uid, earlier.st_gid) != 0 &&
      ::fchown(file, static_cast<uid_t>(-1), earlier.st_gid) != 0) {
    // The group could not be kept, so this process's group gets no more rights than everybody has.
    mode &= static_cast<mode_t>(~S_IRWXG) | (mode & S_IRWXO) << 3U;
  }
  ::fchmod(file, mode);
}

}  // namespace

AtomicFile::AtomicFile(fs::path destination)
    : destination_(std::move(destination)), place_(destination_) {
  open();
}

void AtomicFile::open() {
  // The kernel follows the links, and applies its rules on whose links may be followed in shared
  // folders.
  const UniqueFd handle(::open(destination_.c_str(), O_PATH | O_CLOEXEC));
  if (!handle && errno != ENOENT) fail("create", errno);
  if (!handle && is_link(destination_)) {
    refuse("it is a link to a file that is not there", "remove the link, or make that file");
  }
  if (!handle) return open_beside(S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  struct stat earlier{};
  if (::fstat(handle.get(), &earlier) != 0) fail("look at", errno);
  if (S_ISCHR(earlier.st_mode) || S_ISFIFO(earlier.st_mode)) return open_through(0);
  if (!S_ISREG(earlier.st_mode)) {
    refuse(S_ISDIR(earlier.st_mode) ? "it is a folder" : "it is neither a file nor a stream",
           "give the path of a file");
  }
  if (const auto own = find_own_stream(destination_)) return continue_stream(*own);
  const bool is_of_a_process = destination_.native().starts_with("/proc/") && is_link(destination_);
  if (is_of_a_process) return open_through(O_APPEND);  // a file that another process has open
  if (is_link(destination_)) {
    std::error_code failure;
    place_ = fs::read_symlink(join_message("/proc/self/fd/", handle.get()), failure);
    if (failure) fail("follow the link", failure.value());
  }
  open_beside(S_IRUSR | S_IWUSR);  // private until it has the permissions of the old file
  take_over(file_.get(), earlier);
}

// Duplicates the descriptor instead of opening the path again: the copy shares the file offset, so
// output continues where the program last wrote.
void AtomicFile::continue_stream(int descriptor) {
  std::cout.flush();
  file_.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!file_) fail("open", errno);
}

void AtomicFile::open_through(int flags) {
  // O_NONBLOCK, because nobody may ever open the other end of a FIFO.
  file_.reset(::open(destination_.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags));
  if (!file_ && errno == ENXIO) {
    refuse("it is a FIFO that nobody reads, or a device that is not there",
           "begin to read it first, or give the path of a file");
  }
  if (!file_) fail("open", errno);
  ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_NONBLOCK);
}

void AtomicFile::open_beside(mode_t mode) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    temporary_ = hidden_sibling(place_);
    file_.reset(
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    // The name is random, but another file may have it already.
    if (file_ || errno != EEXIST) break;
  }
  if (!file_) fail("create", errno);
}

AtomicFile::~AtomicFile() {
  if (file_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("write", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  const bool is_stream = temporary_.empty();
  // Order matters: contents first, then the name, then the directory entry. Streams cannot be
  // flushed, which is not an error.
  const auto is_nothing_to_flush = [&] { return is_stream && (errno == EINVAL || errno == EROFS); };
  if (::fsync(file_.get()) != 0 && !is_nothing_to_flush()) fail("flush", errno);
  if (is_stream) return file_.reset();
  if (::rename(temporary_.c_str(), place_.c_str()) != 0) fail("rename", errno);
  file_.reset();
  const UniqueFd folder(::open(folder_of(place_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) fail("flush the folder of", errno);
}

void AtomicFile::fail(std::string_view action, int error_number) const {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw CheckpointError(join_message("cannot ", action, " ", destination_.string(), ": ",
                                     describe_errno(error_number)),
                        !is_full             ? "check that the folder exists and may be written to"
                        : temporary_.empty() ? "free space there or choose another file"
                                             : "free space on that disk or choose another folder; "
                                               "the previous file is untouched");
}

void AtomicFile::refuse(std::string_view what, std::string_view hint) const {
  throw CheckpointError(join_message("cannot write ", destination_.string(), ": ", what), hint);
}

void write_file(const std::filesystem::path& file, std::string_view text) {
  AtomicFile written(file);
  written.write(text);
  written.commit();
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/append_file.h>

#include <trireme/base/error.h>
#include <trireme/base/warning.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <tuple>
#include <utility>

namespace trireme::report {
namespace {

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path,
                       int error_number) {
  throw ConfigError(
      join_message("cannot ", action, " ", path.string(), ": ", describe_errno(error_number)),
      error_number == ENOSPC ? "free space on that disk or choose another folder"
                             : "check that the folder may be written to, or choose another one");
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure) fail("make the folder", folder, failure.value());
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, bool starts_anew) : path_(std::move(path)) {
  make_folder(path_.parent_path());
  // O_NONBLOCK: a FIFO without a reader loses records, like a full disk does, and does not block
  // the run.
  const int flags =
      O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (starts_anew ? O_TRUNC : 0);
  file_.reset(::open(path_.c_str(), flags, 0644));
  if (!file_) fail("write to", path_, errno);
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) fail("look at", path_, errno);
  has_earlier_records_ = status.st_size > 0;
  char last = '\n';
  if (has_earlier_records_ && ::pread(file_.get(), &last, 1, status.st_size - 1) != 1) {
    fail("read", path_, errno);
  }
  ends_within_line_ = last != '\n';
}

AppendFile::~AppendFile() {
  if (!file_ || all_lost_ == 0) return;
  trireme::warn(path_.c_str(), " lacks ", all_lost_, " records that could not be written");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): callers give temporaries
void AppendFile::begin(std::string text) {
  begin_ += text;
  if (const int error_number = try_to_append(begin_); error_number != 0) return warn(error_number);
  begin_.clear();
}

void AppendFile::append(std::string_view record) {
  const int error_number =
      begin_.empty() ? try_to_append(record) : try_to_append(begin_ + std::string(record));
  if (error_number == 0) {
    begin_.clear();
    lost_ = 0;
    return;
  }
  ++lost_;
  ++all_lost_;
  warn(error_number);
}

// Writes the whole record or nothing. Returns 0, or the error number.
int AppendFile::try_to_append(std::string_view record) {
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t written = ::write(file_.get(), record.data() + done, record.size() - done);
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
      continue;
    }
    if (errno == EINTR) continue;
    const int error_number = errno;
    // When the disk becomes full, a part of the record may have been written. Remove it.
    struct stat status{};
    if (done > 0 && ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode)) {
      std::ignore = ::ftruncate(file_.get(), status.st_size - static_cast<off_t>(done));
    }
    return error_number;
  }
  return 0;
}

void AppendFile::warn(int error_number) {
  if (std::exchange(has_warned_, true)) return;
  trireme::warn("cannot write to ", path_.c_str(), ": ", describe_errno(error_number),
                "; the run goes on, and records are left out until they can be written");
}

void check_can_write(const std::filesystem::path& folder) {
  make_folder(folder);
  std::string name = (folder / ".write-test-XXXXXX").string();
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) fail("make files in", folder, errno);
  ::unlink(name.c_str());
}

}  // namespace trireme::report

// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/append_file.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
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
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (starts_anew ? O_TRUNC : 0);
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

void AppendFile::append(std::string_view record) {
  while (!record.empty()) {
    const ssize_t written = ::write(file_.get(), record.data(), record.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("write to", path_, errno);
    }
    record.remove_prefix(static_cast<std::size_t>(written));
  }
}

void check_can_write(const std::filesystem::path& folder) {
  make_folder(folder);
  std::string name = (folder / ".write-test-XXXXXX").string();
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) fail("make files in", folder, errno);
  ::unlink(name.c_str());
}

}  // namespace trireme::report

// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace trireme {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path destination) : destination_(std::move(destination)) {
  temporary_ = folder_of(destination_) /
               join_message(".", destination_.filename().string(), ".", ::getpid(), ".tmp");
  file_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file_) fail("create", errno);
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
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
  if (::fsync(file_.get()) != 0) fail("flush", errno);
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0) fail("rename", errno);
  file_.reset();
  const UniqueFd folder(
      ::open(folder_of(destination_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) fail("flush the folder of", errno);
}

void AtomicFile::fail(std::string_view action, int error_number) const {
  throw CheckpointError(
      join_message("cannot ", action, " ", destination_.string(), ": ",
                   describe_errno(error_number)),
      error_number == ENOSPC
          ? "free space on that disk or choose another folder; the previous file is untouched"
          : "check that the folder exists and may be written to");
}

}  // namespace trireme

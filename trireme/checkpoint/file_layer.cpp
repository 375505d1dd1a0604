// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/file_layer.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace trireme::checkpoint {

namespace fs = std::filesystem;

int FileLayer::create(const fs::path& file) {
  // O_EXCL and O_NOFOLLOW: never writes into an existing file or through a link.
  return ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

ssize_t FileLayer::write(int file, std::span<const std::byte> bytes, std::int64_t offset) {
  return ::pwrite(file, bytes.data(), bytes.size(), offset);
}

int FileLayer::flush(int file) { return ::fsync(file); }

int FileLayer::flush_folder(const fs::path& folder) {
  const UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return handle ? ::fsync(handle.get()) : -1;
}

int FileLayer::make_folder(const fs::path& folder) { return ::mkdir(folder.c_str(), 0755); }

int FileLayer::rename(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str());
}

int FileLayer::exchange(const fs::path& one, const fs::path& other) {
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
}

int FileLayer::remove_file(const fs::path& file) { return ::unlink(file.c_str()); }

int FileLayer::remove_folder(const fs::path& folder) { return ::rmdir(folder.c_str()); }

FileLayer& system_files() {
  static FileLayer files;
  return files;
}

void throw_cannot(std::string_view action, const fs::path& path, int error_number) {
  throw CheckpointError(
      join_message("cannot ", action, " ", path.string(), ": ", describe_errno(error_number)),
      error_number == ENOSPC || error_number == EDQUOT
          ? "free space on that disk or choose another folder; earlier checkpoints are untouched"
          : "check that the folder exists and may be written to");
}

void flush_names(const fs::path& folder, FileLayer& files) {
  // Some file systems cannot flush folders.
  if (files.flush_folder(folder) == 0 || errno == EINVAL || errno == ENOTSUP) return;
  throw_cannot("flush", folder, errno);
}

void make_folders(const fs::path& folder, FileLayer& files) {
  std::vector<fs::path> missing;
  std::error_code failure;
  // Collects the missing folders from the innermost to the outermost.
  for (fs::path above = folder; !above.empty() && !fs::exists(above, failure);
       above = above.parent_path()) {
    missing.push_back(above);
    if (above == above.parent_path()) break;
  }
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& next = missing.back();
    // Another rank or program may have created it in the meantime.
    if (files.make_folder(next) != 0 && errno != EEXIST) {
      throw_cannot("create the checkpoint folder", next, errno);
    }
    // Flushing needs read permission, which a user who may create folders need not have.
    const fs::path above = next.has_parent_path() ? next.parent_path() : ".";
    if (::access(above.c_str(), R_OK) == 0) flush_names(above, files);
  }
  if (!fs::is_directory(folder, failure)) {
    throw_cannot("create the checkpoint folder", folder, ENOTDIR);
  }
}

void remove_all(const fs::path& path, FileLayer& files) {
  std::error_code failure;
  if (!fs::is_directory(fs::symlink_status(path, failure))) {
    if (files.remove_file(path) != 0 && errno != ENOENT) throw_cannot("remove", path, errno);
    return;
  }
  std::vector<fs::path> children;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    children.push_back(entry->path());
  }
  if (failure && failure != std::errc::no_such_file_or_directory) {
    throw_cannot("list", path, failure.value());
  }
  for (const fs::path& child : children) remove_all(child, files);
  if (files.remove_folder(path) != 0 && errno != ENOENT) throw_cannot("remove", path, errno);
}

OutputFile::OutputFile(fs::path path, FileLayer& files)
    : path_(std::move(path)), files_(files), file_(files.create(path_)) {
  if (!file_) throw_cannot("create", path_, errno);
}

void OutputFile::append(std::span<const std::byte> bytes) {
  // Asks the kernel to start writing, so that the disk works while the next bytes are made. This is
  // only advice, so a failure does not matter.
  constexpr std::int64_t kSendBytes = std::int64_t{8} << 20;
  write_at(end_, bytes);
  end_ += static_cast<std::int64_t>(bytes.size());
  if (end_ - sent_ < kSendBytes) return;
  ::sync_file_range(file_.get(), sent_, end_ - sent_, SYNC_FILE_RANGE_WRITE);
  sent_ = end_;
}

void OutputFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = files_.write(file_.get(), bytes, offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_cannot("write", path_, errno);
    }
    offset += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::finish() {
  if (files_.flush(file_.get()) != 0) throw_cannot("flush", path_, errno);
  file_.reset();
}

}  // namespace trireme::checkpoint

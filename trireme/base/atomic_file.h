// SPDX-License-Identifier: Apache-2.0
// Writes files atomically: a file gets its name only when it is complete and on the disk. A crash
// of the process or the machine leaves either the old file or the new one, never a part of it.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme {

/// Writes a file under a hidden, unpredictable temporary name beside its destination. `commit()`
/// flushes it to the disk and renames it. Without a commit, the destructor removes the temporary
/// file and the old file stays as it was. Not thread-safe. Every method throws CheckpointError with
/// the path and the cause if the file system refuses.
///
/// What happens to an existing destination depends on its kind:
/// - A regular file is replaced. The new file has the old permissions, and the old owner and group
///   as far as the system permits.
/// - A symbolic link stays and its target is replaced. A link without a target is refused.
/// - A character device such as `/dev/stdout`, or a FIFO with a reader, stays. Bytes go to it
///   directly, as they are written.
/// - Directories, sockets and block devices are refused.
class AtomicFile {
 public:
  /// Creates the temporary file, or opens the device or FIFO that bytes go to.
  explicit AtomicFile(std::filesystem::path destination);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes. Blocking.
  void write(std::span<const std::byte> bytes);
  /// Appends text. Blocking.
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Flushes the file and its directory to the disk and gives the file its final name. Blocking.
  /// Call it once, after the last write.
  void commit();

 private:
  void open();
  void open_through(int flags);
  void continue_stream(int descriptor);
  void open_beside(mode_t mode);
  [[noreturn]] void fail(std::string_view action, int error_number) const;
  [[noreturn]] void refuse(std::string_view what, std::string_view hint) const;

  std::filesystem::path destination_;  // the path as the caller gave it, for messages
  std::filesystem::path place_;        // the path with symbolic links followed
  std::filesystem::path temporary_;    // empty if bytes go to the destination itself
  UniqueFd file_;
};

/// Writes a whole file with AtomicFile.
void write_file(const std::filesystem::path& file, std::string_view text);

/// Writes a whole file with AtomicFile, and throws `Error` instead of CheckpointError.
template <typename Error>
void write_file_or_throw(const std::filesystem::path& file, std::string_view text) {
  try {
    write_file(file, text);
  } catch (const CheckpointError& error) {  // its message has a hint
    throw Error(error.what(), "");
  }
}

}  // namespace trireme

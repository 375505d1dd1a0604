// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all, whatever moment the process or the machine dies in.
#pragma once

#include <trireme/base/unique_fd.h>

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme {

/// A file under construction: written beside its place under a hidden temporary name that nobody
/// can predict, flushed to the disk and renamed by `commit()`. Without a commit the destructor
/// removes it and the old file stays. Not thread-safe. Every method throws CheckpointError with
/// path and cause where the file system refuses.
///
/// What has the name already: a file is replaced and keeps its permissions, and its owner and group
/// where the system lets this process give them. A link stays, and the file that it leads to is
/// replaced; one that leads nowhere is refused. A character device (`/dev/stdout`, `/dev/null`) or
/// a FIFO that somebody reads stays, and gets the bytes as they are written. Folders, sockets and
/// disks are refused.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path destination);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Flushes file and folder to the disk and gives the file its name; blocking. Call once, last.
  void commit();

 private:
  void open();
  void open_through(int flags);
  void continue_stream(int descriptor);
  void open_beside(mode_t mode);
  [[noreturn]] void fail(std::string_view action, int error_number) const;
  [[noreturn]] void refuse(std::string_view what, std::string_view hint) const;

  std::filesystem::path destination_;  // as it was given, for messages
  std::filesystem::path place_;        // with links followed
  std::filesystem::path temporary_;    // empty where bytes go to the destination itself
  UniqueFd file_;
};

}  // namespace trireme

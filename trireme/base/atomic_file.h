// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all, whatever moment the process or the machine dies in.
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme {

/// A file under construction: written beside its place under a hidden temporary name, flushed to
/// the disk and renamed by `commit()`. Without a commit the destructor removes it and the old file
/// stays. Not thread-safe. Every method throws CheckpointError with path and cause where the file
/// system refuses.
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
  [[noreturn]] void fail(std::string_view action, int error_number) const;

  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  UniqueFd file_;
};

}  // namespace trireme

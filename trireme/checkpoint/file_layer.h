// SPDX-License-Identifier: Apache-2.0
// All system calls that write checkpoints. A save is a sequence of these calls, and a test can make
// each of them fail or be the last one.
#pragma once

#include <trireme/base/unique_fd.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme::checkpoint {

/// The system calls; a derived class may replace them. Each method returns what the system call of
/// that name returns and sets errno on failure. Thread-safe.
class FileLayer {
 public:
  FileLayer() = default;
  FileLayer(const FileLayer&) = delete;
  FileLayer& operator=(const FileLayer&) = delete;
  virtual ~FileLayer() = default;

  /// Creates a new file for writing. Fails if the name exists. Returns a file descriptor or -1.
  virtual int create(const std::filesystem::path& file);
  /// Writes bytes at an offset (pwrite). Returns the number of bytes written or -1.
  virtual ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset);
  /// Flushes a file to disk (fsync).
  virtual int flush(int file);
  /// Flushes the names in a folder to disk.
  virtual int flush_folder(const std::filesystem::path& folder);
  /// Creates a folder.
  virtual int make_folder(const std::filesystem::path& folder);
  /// Renames a file or folder.
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  /// Exchanges two names atomically.
  virtual int exchange(const std::filesystem::path& one, const std::filesystem::path& other);
  /// Removes a file.
  virtual int remove_file(const std::filesystem::path& file);
  /// Removes an empty folder.
  virtual int remove_folder(const std::filesystem::path& folder);
};

/// Returns the system's own calls.
FileLayer& system_files();

/// Throws CheckpointError with action, path, cause and hint.
[[noreturn]] void throw_cannot(std::string_view action, const std::filesystem::path& path,
                               int error_number);

/// Flushes the names in a folder to disk. Throws CheckpointError. Does nothing on a file system
/// that does not support it.
void flush_names(const std::filesystem::path& folder, FileLayer& files);

/// Creates a folder and its missing parents, and flushes their names. Throws CheckpointError.
void make_folders(const std::filesystem::path& folder, FileLayer& files);

/// Removes a folder with its content, or one file. A missing file is not an error. Throws
/// CheckpointError.
void remove_all(const std::filesystem::path& path, FileLayer& files);

/// A new file. Its content is on disk after finish(). A file that was not finished stays
/// incomplete, because its folder is then not published. Not thread-safe. Every method throws
/// CheckpointError with path and cause if a file operation fails.
class OutputFile {
 public:
  /// Creates the file.
  OutputFile(std::filesystem::path path, FileLayer& files);

  /// Appends bytes.
  void append(std::span<const std::byte> bytes);
  /// Appends text.
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  /// Reserves bytes at the end, to be written by write_at().
  void skip(std::int64_t bytes) { end_ += bytes; }
  /// Writes bytes at an offset.
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);

  /// Flushes the file to disk; blocking. Call it once, at the end.
  void finish();

 private:
  std::filesystem::path path_;
  FileLayer& files_;
  UniqueFd file_;
  std::int64_t end_ = 0;
  // The end of the bytes that the kernel was told to start writing.
  std::int64_t sent_ = 0;
};

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Every system call by which a checkpoint is written, in one place: what a save does to a disk is
// the sequence of these calls, and a test can make each of them fail, or be the last.
#pragma once

#include <trireme/base/unique_fd.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme::checkpoint {

/// The system itself; a derived class may do otherwise. Each method returns what the call of that
/// name returns, and sets errno where it fails. Thread-safe.
class FileLayer {
 public:
  FileLayer() = default;
  FileLayer(const FileLayer&) = delete;
  FileLayer& operator=(const FileLayer&) = delete;
  virtual ~FileLayer() = default;

  /// Makes a new file for writing, where nothing has that name; a file descriptor, or -1.
  virtual int create(const std::filesystem::path& file);
  virtual ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset);
  /// fsync of a file, and of the names in a folder.
  virtual int flush(int file);
  virtual int flush_folder(const std::filesystem::path& folder);
  virtual int make_folder(const std::filesystem::path& folder);
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  /// Both names change places in one step.
  virtual int exchange(const std::filesystem::path& one, const std::filesystem::path& other);
  virtual int remove_file(const std::filesystem::path& file);
  virtual int remove_folder(const std::filesystem::path& folder);
};

/// The system's own calls.
FileLayer& system_files();

/// Throws CheckpointError with action, path, cause and hint.
[[noreturn]] void throw_cannot(std::string_view action, const std::filesystem::path& path,
                               int error_number);

/// Flushes the names in a folder to the disk. Throws CheckpointError; a file system that has no
/// such operation is taken as it is.
void flush_names(const std::filesystem::path& folder, FileLayer& files);

/// Makes a folder and those above it where they are missing, and flushes their names. Throws
/// CheckpointError.
void make_folders(const std::filesystem::path& folder, FileLayer& files);

/// Removes a folder of files and folders, or one file; what is gone already is no error. Throws
/// CheckpointError.
void remove_all(const std::filesystem::path& path, FileLayer& files);

/// A new file. What is written is on the disk once `finish()` has returned; a file that was not
/// finished stays as it is, for its folder is not published then. Not thread-safe. Every method
/// throws CheckpointError with path and cause where the file system refuses.
class OutputFile {
 public:
  OutputFile(std::filesystem::path path, FileLayer& files);

  /// Writes at the end of what was appended before.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  /// Leaves room at the end, for write_at.
  void skip(std::int64_t bytes) { end_ += bytes; }
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);

  /// Flushes to the disk; blocking. Call once, last.
  void finish();

 private:
  std::filesystem::path path_;
  FileLayer& files_;
  UniqueFd file_;
  std::int64_t end_ = 0;
  std::int64_t sent_ = 0;  // up to here the disk has been told to begin
};

}  // namespace trireme::checkpoint

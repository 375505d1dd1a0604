// SPDX-License-Identifier: Apache-2.0
// A file that grows by complete records while a run is in progress.
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::report {

/// A file that is opened for appending; missing parent folders are created. Each record is written
/// with one system call. A run that is killed therefore leaves all the records it has written, and
/// only the last one may be incomplete.
///
/// Opening throws ConfigError with the path and the cause if the file system refuses. A full disk
/// later does not end the run: a record that cannot be written is left out completely. The first
/// failure, and the number of missing records at the end, are reported on standard error. `lost()`
/// lets the writer of a format mark the gap. Not thread-safe.
class AppendFile {
 public:
  /// Opens the file.
  /// @param path the path of the file.
  /// @param starts_anew true to delete what an earlier run left in the file.
  explicit AppendFile(std::filesystem::path path, bool starts_anew = false);
  AppendFile(AppendFile&&) noexcept = default;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();

  /// Writes a text that must precede the next record. If that fails now, it is written together
  /// with that record.
  void begin(std::string text);
  /// Writes a record.
  void append(std::string_view record);

  /// Returns the number of records that were left out since the last one that was written.
  std::int64_t lost() const { return lost_; }
  /// Returns true if the file was not empty when it was opened.
  bool has_earlier_records() const { return has_earlier_records_; }
  /// Returns true if the earlier content ends in the middle of a line.
  bool ends_within_line() const { return ends_within_line_; }
  /// Returns the path of the file.
  const std::filesystem::path& path() const { return path_; }

 private:
  int try_to_append(std::string_view record);
  void warn(int error_number);

  std::filesystem::path path_;
  UniqueFd file_;
  std::string begin_;  // the text that must be written before the next record
  std::int64_t lost_ = 0;
  std::int64_t all_lost_ = 0;
  bool has_warned_ = false;
  bool has_earlier_records_ = false;
  bool ends_within_line_ = false;
};

/// Creates a folder and its parents if necessary. Throws ConfigError if files cannot be created in
/// it.
void check_can_write(const std::filesystem::path& folder);

}  // namespace trireme::report

// SPDX-License-Identifier: Apache-2.0
// A file that grows by whole records while a run goes on.
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::report {

/// Opened for appending; folders above it are made. Each record is handed to the system by one
/// call, so that a run that is killed leaves all that it had written, and whole records but for the
/// last. Opening throws ConfigError with path and cause where the file system refuses. A full disk
/// afterwards ends no run: records that cannot be written are left out as a whole, the first one
/// and their number at the end are reported on standard error, and `lost()` lets the writer of a
/// format leave a mark. Not thread-safe.
class AppendFile {
 public:
  /// @param starts_anew throws away what an earlier run left in the file.
  explicit AppendFile(std::filesystem::path path, bool starts_anew = false);
  AppendFile(AppendFile&&) noexcept = default;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();

  /// Writes what has to stand before the next record; where that fails now, then together with it.
  void begin(std::string text);
  void append(std::string_view record);

  /// How many records were left out since the last one that was written.
  std::int64_t lost() const { return lost_; }
  /// Whether it held something when it was opened.
  bool has_earlier_records() const { return has_earlier_records_; }
  /// Whether that ends in the middle of a line.
  bool ends_within_line() const { return ends_within_line_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  int try_to_append(std::string_view record);
  void warn(int error_number);

  std::filesystem::path path_;
  UniqueFd file_;
  std::string begin_;  // what is still to be written before the next record
  std::int64_t lost_ = 0;
  std::int64_t all_lost_ = 0;
  bool has_warned_ = false;
  bool has_earlier_records_ = false;
  bool ends_within_line_ = false;
};

/// Makes a folder and those above it, and throws ConfigError unless files can be made in it.
void check_can_write(const std::filesystem::path& folder);

}  // namespace trireme::report

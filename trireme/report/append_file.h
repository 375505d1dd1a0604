// SPDX-License-Identifier: Apache-2.0
// A file that grows by whole records while a run goes on.
#pragma once

#include <trireme/base/unique_fd.h>

#include <filesystem>
#include <string_view>

namespace trireme::report {

/// Opened for appending; folders above it are made. Each record is handed to the system by one
/// call, so that a run that is killed leaves all that it had written, and whole records but for the
/// last. Throws ConfigError with path and cause where the file system refuses. Not thread-safe.
class AppendFile {
 public:
  /// @param starts_anew throws away what an earlier run left in the file.
  explicit AppendFile(std::filesystem::path path, bool starts_anew = false);

  void append(std::string_view record);

  /// Whether it held something when it was opened.
  bool has_earlier_records() const { return has_earlier_records_; }
  /// Whether that ends in the middle of a line.
  bool ends_within_line() const { return ends_within_line_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  bool has_earlier_records_ = false;
  bool ends_within_line_ = false;
};

/// Makes a folder and those above it, and throws ConfigError unless files can be made in it.
void check_can_write(const std::filesystem::path& folder);

}  // namespace trireme::report

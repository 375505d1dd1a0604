// SPDX-License-Identifier: Apache-2.0
// The journal of a scheduler: one line of JSON for each event (docs/formats/journal.md).
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::launch {

/// A value in a line of a journal.
using JournalValue = std::variant<std::string, std::int64_t, double, bool>;
/// The members of a line beside its time and event.
using JournalFields = std::vector<std::pair<const char*, JournalValue>>;

/// A file to which events are appended. Each line is written by one call, so that a process that is
/// killed leaves whole lines. They are not flushed to the disk. Not thread-safe.
class Journal {
 public:
  /// Opens a file to append to it, and creates it if it is missing. Ends a line that was cut by a
  /// crash. Throws ConfigError if that fails, or another process has the journal open.
  explicit Journal(std::filesystem::path file);

  /// Returns the path.
  const std::filesystem::path& path() const { return path_; }

  /// Appends an event with the present time. If the file system refuses, counts the line; the next
  /// one that succeeds is preceded by a line `lost` with their number.
  /// @param event the name of the event.
  /// @param fields its values.
  void write(const std::string& event, const JournalFields& fields);

  /// Returns the error number of the last line that could not be written, once; 0 if there is none.
  int take_error() { return std::exchange(error_, 0); }

 private:
  bool append(const std::string& event, const JournalFields& fields);

  std::filesystem::path path_;
  UniqueFd file_;
  std::int64_t lost_ = 0;
  bool is_cut_ = false;  // the file ends within a line
  int error_ = 0;
};

}  // namespace trireme::launch

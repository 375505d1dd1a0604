// SPDX-License-Identifier: Apache-2.0
// Remembers the last operations of one rank in a group, for engines that have no recorder of their
// own.
#pragma once

#include <trireme/comm/monitor/record.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// Thread-safety: safe.
class Recorder {
 public:
  static constexpr std::size_t kRecords = 128;

  /// `operation` and `type` must outlive the recorder: they are names in the program.
  void begin(std::uint64_t number, const char* operation, std::string_view type, std::int64_t count,
             std::string_view label);
  void end(std::uint64_t number);

  /// Oldest first.
  std::vector<OperationRecord> records() const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    const char* operation = "";
    std::string_view type;
    std::int64_t count = 0;
    std::string label;
    std::chrono::nanoseconds started{};
    std::chrono::nanoseconds finished{};
  };
  mutable std::mutex mutex_;  // guards entries_
  std::array<Entry, kRecords> entries_;
};

}  // namespace trireme::comm

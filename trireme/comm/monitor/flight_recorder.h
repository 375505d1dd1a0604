// SPDX-License-Identifier: Apache-2.0
// Remembers the last operations of one rank in a group, for engines that have no recorder of their
// own.
#pragma once

#include <trireme/comm/monitor/operation_record.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// Thread-safety: safe.
class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 128;
  /// Names an operation of this rank, collective or not: counts them all from 1.
  using Serial = std::uint64_t;

  struct Operation {
    std::uint64_t number = 0;  ///< among the group's collectives or this rank's messages
    const char* name = "";     ///< with static storage, as `type` has
    std::string_view type = {};
    std::int64_t count = 0;
    std::string_view label = {};
    int peer = -1;  ///< the other rank of a send or receive
  };
  Serial begin(const Operation& operation);
  /// Notes that the caller waits for it, until `end` or `stop_waiting`.
  void wait(Serial serial);
  void stop_waiting(Serial serial);
  void end(Serial serial);

  /// Oldest first.
  std::vector<OperationRecord> records() const;

  struct Waiting {
    OperationRecord operation;
    int peer = -1;
    Serial serial = 0;
    std::chrono::steady_clock::time_point since;
  };
  /// Where this rank is in the group's calls.
  struct Place {
    std::uint64_t last_collective = 0;    ///< number of the last that was begun
    std::string last;                     ///< describes the last operation
    std::optional<Waiting> waiting = {};  ///< the operation that has been waited for longest
  };
  Place place() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Serial serial = 0;
    std::uint64_t number = 0;
    const char* name = "";
    std::string_view type;
    std::int64_t count = 0;
    std::string label;
    int peer = -1;
    Clock::time_point started{};
    Clock::time_point finished{};
    std::optional<Clock::time_point> waited_since{};
  };
  static OperationRecord record_of(const Entry& entry);
  Entry* find(Serial serial);

  mutable std::mutex mutex_;  // guards what follows
  Serial last_serial_ = 0;
  std::uint64_t last_collective_ = 0;
  std::array<Entry, kRecords> entries_;
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// FlightRecorder: stores the last operations of one rank in a group, for engines that have no
// recorder of their own. OperationRecord is one of them, for messages and dumps.
#pragma once

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

struct OperationRecord {
  /// Counts the collectives of a group from 1, equally on all ranks. Sends and receives of a rank
  /// have a count of their own.
  std::uint64_t number = 0;
  bool is_collective = true;
  std::string what;                     ///< such as `all-reduce (sum) of 100 float32`
  std::string label;                    ///< the label that the caller gave
  std::chrono::nanoseconds started{};   ///< on the monotonic clock of the host
  std::chrono::nanoseconds finished{};  ///< zero while it runs
};

/// Returns a text such as `all-reduce (sum) of 100 float32, number 7 ('layer1.weight')`.
std::string describe(const OperationRecord& record);

/// The records of one rank in one group, oldest first, and the error for which they were written.
struct Dump {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string error;
  std::vector<OperationRecord> operations;
};

/// The last kRecords operations of one rank. Thread-safety: safe.
class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 128;
  /// Identifies an operation of this rank, collective or not. Counts all of them from 1.
  using Serial = std::uint64_t;

  struct Operation {
    std::uint64_t number = 0;  ///< counts the group's collectives or this rank's messages
    const char* name = "";     ///< a string with static storage, like `type`
    std::string_view type = {};
    std::int64_t count = 0;
    std::string_view label = {};
    int peer = -1;  ///< the other rank of a send or receive
  };
  /// Records the beginning of an operation.
  Serial begin(const Operation& operation);
  /// Records that a thread waits for the operation, until `end` or `stop_waiting`.
  void wait(Serial serial);
  /// Records that no thread waits for the operation any more.
  void stop_waiting(Serial serial);
  /// Records the end of the operation.
  void end(Serial serial);

  /// Returns the stored operations, the oldest first.
  std::vector<OperationRecord> records() const;

  /// An operation that a thread waits for.
  struct Waiting {
    OperationRecord operation;
    int peer = -1;
    Serial serial = 0;
    std::chrono::steady_clock::time_point since;
  };
  /// How far this rank has come in the calls of the group.
  struct Place {
    std::uint64_t last_collective = 0;    ///< number of the last collective that has begun
    std::string last;                     ///< description of the last operation
    std::optional<Waiting> waiting = {};  ///< the operation that a thread has waited for longest
  };
  /// Returns how far this rank has come.
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

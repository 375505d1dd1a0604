// SPDX-License-Identifier: Apache-2.0
// OperationRecord: a collective, send or receive of a rank, for messages and dumps.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::comm {

/// One operation of a rank.
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

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// What a rank did, for messages and dumps: one entry per collective, send or receive.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::comm {

struct OperationRecord {
  /// Counts the collectives of a group from 1, alike on all ranks; sends and receives of a rank
  /// apart.
  std::uint64_t number = 0;
  bool is_collective = true;
  std::string what;                     ///< such as `all-reduce (sum) of 100 float32`
  std::string label;                    ///< what it was for, where the caller said so
  std::chrono::nanoseconds started{};   ///< of the monotonic clock of its host
  std::chrono::nanoseconds finished{};  ///< zero while it runs
};

/// `all-reduce (sum) of 100 float32, number 7 ('layer1.weight')`.
std::string describe(const OperationRecord& record);

/// The records of one rank of one group, oldest first, and why they were written.
struct Dump {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string error;
  std::vector<OperationRecord> operations;
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// Asks the other ranks through the store what they did, for engines that only say that they failed.
#pragma once

#include <trireme/comm/monitor/watchdog.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>

namespace c10d {
class Store;
}

namespace trireme::comm {

/// What is known of the ranks when an operation fails.
struct FailureReport {
  std::string lines;  ///< a line for each rank, each after a line break
  int teller = -1;    ///< the first rank that answered; its error shows the lines
  int culprit = -1;   ///< the rank that held up the others; -1 if unknown
  RankStatus fate = RankStatus::kUnknown;
  std::string what;  ///< `rank 1 is stopped by a signal`
};

/// Tells the others what this rank did last, and collects what they did. Waits up to `patience` for
/// ranks that have not ended and are not stopped. Never throws.
/// @param store may be null if it does not answer.
/// @param world_ranks the rank in the world of each rank; empty if they are equal.
/// @param own what this rank did last.
/// @param look returns what is known of another rank of the group without its help.
FailureReport exchange_last_operations(c10d::Store* store, int rank, int size,
                                       std::span<const int> world_ranks, const std::string& own,
                                       std::chrono::milliseconds patience,
                                       const std::function<Finding(int rank)>& look);

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// What the other ranks did, asked through the store when an engine says no more than that it
// failed.
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

struct FailureReport {
  std::string lines;  ///< one for each rank, each with a line break before it
  int teller = -1;    ///< the first rank that answers; its error shows the lines
  int culprit = -1;   ///< the rank that held the others up, where one can be told
  RankStatus fate = RankStatus::kUnknown;
  std::string what;  ///< `rank 1 is stopped by a signal`
};

/// Tells the others what this rank did last, and waits up to `patience` for those to do the same
/// that have not ended or been stopped. Never throws.
/// @param world_ranks what the ranks are in the world, by rank; empty: the same.
/// @param store null where it does not answer.
/// @param look what can be told of another rank of the group without its help.
FailureReport exchange_last_operations(c10d::Store* store, int rank, int size,
                                       std::span<const int> world_ranks, const std::string& own,
                                       std::chrono::milliseconds patience,
                                       const std::function<Finding(int rank)>& look);

}  // namespace trireme::comm

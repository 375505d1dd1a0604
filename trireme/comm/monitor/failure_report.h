// SPDX-License-Identifier: Apache-2.0
// What the other ranks did, asked through the store when an engine says no more than that it
// failed.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <span>
#include <string>

namespace c10d {
class Store;
}

namespace trireme::comm {

/// Tells the others what this rank did last, waits up to `patience` for them to do the same, and
/// returns a line per rank. A rank that does not answer ended, is stopped or still computes. Never
/// throws.
/// @param world_ranks what the ranks are in the world, by rank; empty: the same.
std::string exchange_last_operations(c10d::Store& store, int rank, int size,
                                     std::span<const int> world_ranks, const std::string& own,
                                     std::chrono::milliseconds patience);

}  // namespace trireme::comm

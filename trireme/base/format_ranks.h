// SPDX-License-Identifier: Apache-2.0
// Ranks in messages.
#pragma once

#include <span>
#include <string>

namespace trireme {

/// Returns `rank 3` or `ranks 0 to 7, 9`; in ascending order.
/// @param world_ranks of all ranks of a group, by rank: what they are in the world is said too,
/// `rank 1 (rank 3 of the world)`, unless it is the same. Empty: a group that is the world.
std::string format_ranks(std::span<const int> ranks, std::span<const int> world_ranks = {});

}  // namespace trireme

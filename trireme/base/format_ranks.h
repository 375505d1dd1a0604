// SPDX-License-Identifier: Apache-2.0
// Formats sets of ranks for messages.
#pragma once

#include <span>
#include <string>

namespace trireme {

/// Returns a text such as `rank 3` or `ranks 0 to 7, 9`.
/// @param ranks the ranks within their group, in ascending order.
/// @param world_ranks the world rank of each rank of the group, indexed by group rank. If they
/// differ from `ranks`, they are added: `rank 1 (rank 3 of the world)`. Empty if the group is the
/// world.
std::string format_ranks(std::span<const int> ranks, std::span<const int> world_ranks = {});

}  // namespace trireme

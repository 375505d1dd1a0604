// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/format_ranks.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme {

std::string format_ranks(std::span<const int> ranks, std::span<const int> world_ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (begin == 0 ? "" : ", ") + std::to_string(ranks[begin]);
    if (end - begin > 1)
      text += (end - begin == 2 ? ", " : " to ") + std::to_string(ranks[end - 1]);
    begin = end;
  }
  if (world_ranks.empty()) return text;
  std::vector<int> in_world;
  for (const int rank : ranks) in_world.push_back(world_ranks[static_cast<std::size_t>(rank)]);
  if (std::ranges::equal(in_world, ranks)) return text;
  return text + " (" + format_ranks(in_world) + " of the world)";
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/schedule.h>

#include <algorithm>

namespace trireme::schedule {

bool lists_messages(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const std::vector<Action>& actions) {
    return std::ranges::any_of(actions,
                               [](const Action& action) { return is_message(action.kind); });
  });
}

std::vector<Edge> chain(int num_stages) {
  std::vector<Edge> edges;
  for (int stage = 1; stage < num_stages; ++stage) edges.push_back({stage - 1, stage});
  return edges;
}

std::vector<int> looped_placement(int ranks, int chunks) {
  std::vector<int> placement;
  for (int stage = 0; stage < ranks * chunks; ++stage) placement.push_back(stage % ranks);
  return placement;
}

std::vector<int> v_placement(int ranks) {
  std::vector<int> placement;
  for (int stage = 0; stage < 2 * ranks; ++stage) {
    placement.push_back(std::min(stage, 2 * ranks - 1 - stage));
  }
  return placement;
}

Neighbours::Neighbours(const Schedule& schedule)
    : before(schedule.rank_of_stage.size()), after(schedule.rank_of_stage.size()) {
  for (const Edge& edge : schedule.edges) {
    item(before, edge.to).push_back(edge.from);
    item(after, edge.from).push_back(edge.to);
  }
  for (auto& stages : before) std::ranges::sort(stages);
  for (auto& stages : after) std::ranges::sort(stages);
}

}  // namespace trireme::schedule

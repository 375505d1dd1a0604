// SPDX-License-Identifier: Apache-2.0
// A schedule: what every rank of a pipeline does in one step, as data. Generators make it,
// `verify` proves it, `simulate` times it, the executor runs it: docs/design/schedules.md.
#pragma once

#include <trireme/schedule/action.h>

#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

namespace trireme::schedule {

/// Returns an element of a list; stages, ranks and micro-batches are counted in `int`.
template <typename List>
decltype(auto) item(List& list, std::integral auto number) {
  return list[static_cast<std::size_t>(number)];
}

/// Stage `from` hands tensors to stage `to`, a later one.
struct Edge {
  int from = 0;
  int to = 0;

  bool operator==(const Edge&) const = default;
};

/// Plain values; whoever changes one calls `verify` before it is used.
struct Schedule {
  /// One word: `1f1b`.
  std::string name{};
  int micro_batches = 0;
  /// Which rank has which stage. A rank may have several stages, its chunks.
  std::vector<int> rank_of_stage{};
  /// Who hands tensors to whom; more than a chain where a connection skips stages.
  std::vector<Edge> edges{};
  /// The actions of each rank, in order.
  std::vector<std::vector<Action>> ranks{};

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  int rank_of(int stage) const { return item(rank_of_stage, stage); }
  /// Whether the ends of an edge are on different ranks, so that messages go over it.
  bool crosses_ranks(const Edge& edge) const { return rank_of(edge.from) != rank_of(edge.to); }

  bool operator==(const Schedule&) const = default;
};

/// Whether sends and receives are among the actions.
bool lists_messages(const Schedule& schedule);

/// Returns 0>1, 1>2, and so on.
std::vector<Edge> chain(int num_stages);

/// Returns the ranks of `ranks * chunks` stages that go round: stage s is on rank s mod `ranks`.
std::vector<int> looped_placement(int ranks, int chunks);

/// Returns the ranks of `2 * ranks` stages that go down and come back up: stage s and stage
/// `2 * ranks - 1 - s` are on rank s.
std::vector<int> v_placement(int ranks);

/// The stages next to each stage, by the edges of a schedule.
struct Neighbours {
  explicit Neighbours(const Schedule& schedule);

  std::vector<std::vector<int>> before;  ///< of each stage, ascending
  std::vector<std::vector<int>> after;   ///< of each stage, ascending
};

}  // namespace trireme::schedule

// SPDX-License-Identifier: Apache-2.0
// A schedule: the actions of every rank of a pipeline in one step, as data. Generators create it,
// `verify` proves that it can be executed, `simulate` times it, and the pipeline executes it:
// docs/design/schedules.md.
#pragma once

#include <trireme/schedule/action.h>

#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

namespace trireme::schedule {

/// Returns an element of a list by a signed or unsigned index. Stages, ranks and micro-batches have
/// type `int`.
template <typename List>
decltype(auto) item(List& list, std::integral auto number) {
  return list[static_cast<std::size_t>(number)];
}

/// A connection: stage `from` passes tensors to the later stage `to`.
struct Edge {
  int from = 0;  ///< the earlier stage
  int to = 0;    ///< the later stage

  bool operator==(const Edge&) const = default;
};

/// A schedule as plain values. Call `verify` after changing one and before using it.
struct Schedule {
  /// The name, which must be one word: `1f1b`.
  std::string name{};
  /// The number of micro-batches.
  int micro_batches = 0;
  /// The rank of each stage. The stages of one rank are called its chunks.
  std::vector<int> rank_of_stage{};
  /// The connections between stages: a chain, and further edges if a connection skips stages.
  std::vector<Edge> edges{};
  /// The actions of each rank, in order.
  std::vector<std::vector<Action>> ranks{};

  /// Returns the number of stages.
  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  /// Returns the number of ranks.
  int num_ranks() const { return static_cast<int>(ranks.size()); }
  /// Returns the rank of a stage.
  int rank_of(int stage) const { return item(rank_of_stage, stage); }
  /// Returns true if the two stages of an edge are on different ranks, so that messages are needed.
  bool crosses_ranks(const Edge& edge) const { return rank_of(edge.from) != rank_of(edge.to); }

  bool operator==(const Schedule&) const = default;
};

/// Returns true if the schedule contains sends or receives.
bool lists_messages(const Schedule& schedule);

/// Returns the edges of a chain: 0>1, 1>2, and so on.
std::vector<Edge> chain(int num_stages);

/// Returns a round-robin placement of `ranks * chunks` stages: stage s is on rank s mod `ranks`.
std::vector<int> looped_placement(int ranks, int chunks);

/// Returns a V-shaped placement of `2 * ranks` stages: stage s and stage `2 * ranks - 1 - s` are on
/// rank s.
std::vector<int> v_placement(int ranks);

/// The neighbours of each stage, according to the edges of a schedule.
struct Neighbours {
  /// Computes the neighbours of all stages.
  explicit Neighbours(const Schedule& schedule);

  std::vector<std::vector<int>> before;  ///< for each stage, the stages before it, ascending
  std::vector<std::vector<int>> after;   ///< for each stage, the stages after it, ascending
};

}  // namespace trireme::schedule

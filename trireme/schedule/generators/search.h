// SPDX-License-Identifier: Apache-2.0
// Searches for a schedule with given times and a memory limit.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>
#include <trireme/schedule/verifier/memory.h>

#include <cstdint>
#include <vector>

namespace trireme::schedule {

/// The input of the search.
struct SearchOptions {
  /// The quantity to minimise.
  enum class Goal : std::uint8_t {
    kStepTime,     ///< the time from the first start to the last end on any rank
    kLongestRank,  ///< the longest time of one rank, for steps that follow without a barrier
  };

  /// The number of micro-batches.
  int micro_batches = 1;
  /// The rank of each stage: `looped_placement`, `v_placement`, or any other placement.
  std::vector<int> rank_of_stage{};
  /// The edges between stages; empty means a chain.
  std::vector<Edge> edges{};
  /// The times of actions.
  Times times{};
  /// The memory of one micro-batch in a stage: one value for all stages, or one per stage.
  std::vector<StageBytes> bytes{StageBytes{}};
  /// The maximum number of bytes that a rank may hold for backward: empty for no limit, one value
  /// for all ranks, or one per rank.
  std::vector<std::int64_t> memory_cap{};
  /// The quantity to minimise.
  Goal goal = Goal::kStepTime;
};

/// Returns a schedule without messages, with backward split in two parts, that respects the memory
/// limit. The same options always give the same schedule.
///
/// It follows the heuristic of Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), section
/// 3.1: as many forwards as memory permits before the first backward, then backwards and forwards
/// in turn. Weight parts fill gaps, and run when memory is short. The heuristic runs with many
/// settings: how far a stage runs ahead, which gaps are filled, and which of two actions comes
/// first. The result is the best of these schedules and of the known schedules that fit. It is not
/// guaranteed to be optimal. On the times of the paper, it finds bubbles as short as the paper's
/// (tests/unit/schedule/search_test.cpp).
///
/// Throws UsageError if the memory limit is below the need of one micro-batch, which the message
/// states, or if counts or times do not match.
Schedule search(const SearchOptions& options);

}  // namespace trireme::schedule

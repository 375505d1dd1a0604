// SPDX-License-Identifier: Apache-2.0
// A schedule made for given times and a given memory.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>
#include <trireme/schedule/verifier/memory.h>

#include <cstdint>
#include <vector>

namespace trireme::schedule {

struct SearchOptions {
  enum class Goal : std::uint8_t {
    kStepTime,     ///< from the first beginning to the last end of all ranks
    kLongestRank,  ///< the longest time of one rank: where steps follow without a wait for all
  };

  int micro_batches = 1;
  /// Which rank has which stage: `looped_placement`, `v_placement`, or any other.
  std::vector<int> rank_of_stage{};
  /// Empty for a chain.
  std::vector<Edge> edges{};
  Times times{};
  /// One for all stages, or one for each.
  std::vector<StageBytes> bytes{StageBytes{}};
  /// Most bytes that a rank may hold for backward: nothing for no limit, one for all ranks, or one
  /// for each.
  std::vector<std::int64_t> memory_cap{};
  Goal goal = Goal::kStepTime;
};

/// Returns a schedule without messages, with backward in two parts, within the memory cap.
///
/// Follows the heuristic of Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), section 3.1:
/// as many forwards as memory allows before the first backward, then backwards and forwards in
/// turn, weight parts in gaps and where memory runs out. It does so with several settings of how
/// far a stage runs ahead, what gap is worth filling, and which of two actions comes first, and
/// takes the best of all these and of the schedules made by hand that fit. No optimum is promised;
/// on the times of that paper it finds bubbles as short as the paper's
/// (tests/unit/schedule/search_test.cpp). The same options give the same schedule.
///
/// Throws UsageError where the memory cap is below what one micro-batch needs, naming that, and
/// where counts or times do not fit.
Schedule search(const SearchOptions& options);

}  // namespace trireme::schedule

// SPDX-License-Identifier: Apache-2.0
// Chooses what the stages of one rank recompute, so that what the rank keeps for backward is within
// a limit (Plan::activation_bytes). Runs and predictions choose by it.
#pragma once

#include <trireme/graph/parts/choose.h>
#include <trireme/schedule/schedule.h>

#include <cstdint>
#include <vector>

namespace trireme::detail {

/// What a stage may recompute, and what it keeps in any case, in bytes of one micro-batch.
struct StageUnits {
  int number = 0;                ///< of the stage in its schedule
  graph::Line line{};            ///< the operators of its forward
  std::int64_t inputs = 0;       ///< bytes of inputs from other stages
  std::int64_t for_weights = 0;  ///< bytes that the weight part of a divided backward reads
};

/// What is recomputed.
struct ChosenRanges {
  std::vector<std::vector<graph::UnitRange>> of_stages{};  ///< of the units of each stage, in order
  /// A lower bound for the floating-point operations of any choice within the limit.
  double flops_at_least = 0;
  bool is_chosen = false;  ///< false if the rank is within the limit without recomputing anything
};

/// Returns true if the schedule has the input and the weight part of a stage's backward apart.
bool divides_backward(const schedule::Schedule& schedule, int stage);

/// Chooses for the stages of one rank, so that the fewest floating-point operations are repeated.
/// Throws UsageError if no choice is within the limit; it says what would be.
/// @param stages all stages of the rank in the order of their numbers.
/// @param limit the maximum number of bytes that the rank keeps for backward.
ChosenRanges recompute_within(const std::vector<StageUnits>& stages,
                              const schedule::Schedule& schedule, std::int64_t limit);

}  // namespace trireme::detail

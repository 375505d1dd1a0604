// SPDX-License-Identifier: Apache-2.0
// How much of what forward keeps for backward a rank holds at most.
#pragma once

#include <trireme/schedule/schedule.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::schedule {

/// What one micro-batch keeps in one stage. The defaults count micro-batches.
struct StageBytes {
  /// From the end of forward (of recomputation, where there is one) to the end of the backward, or
  /// of its input part.
  std::int64_t activations = 1;
  /// From the end of the input part to the end of the weight part of the backward.
  std::int64_t weight_inputs = 1;
  /// From forward to the end of the backward, or of its input part, where activations are
  /// recomputed: what that begins with.
  std::int64_t stage_inputs = 0;
  /// The most during the backward, or its input part, that computes some of the activations again
  /// itself, with what it still keeps then; 0 where it does not.
  std::int64_t rebuilding = 0;
};

struct RankMemory {
  std::int64_t peak_bytes = 0;
  /// After which action of the rank, or in which backward, it is reached first.
  std::size_t peak_position = 0;
  /// Most pairs of stage and micro-batch between their forward and their backward or its input
  /// part, whether or not they are offloaded or to be recomputed.
  int peak_forwards = 0;
  /// The same up to the weight part.
  int peak_unfinished = 0;
};

/// Returns the peaks of every rank of a schedule that was verified. @param bytes one for all
/// stages, or one for each; UsageError where there is another number of them. What was offloaded
/// does not count until it is loaded; messages that wait do not count.
std::vector<RankMemory> peak_memory(const Schedule& schedule, std::span<const StageBytes> bytes);

}  // namespace trireme::schedule

// SPDX-License-Identifier: Apache-2.0
// Computes the maximum memory that a rank holds for backward.
#pragma once

#include <trireme/schedule/schedule.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::schedule {

/// The bytes that one micro-batch keeps in one stage. With the default values, micro-batches are
/// counted instead of bytes.
struct StageBytes {
  /// Kept from the end of forward (or of recomputation, if there is one) to the end of backward or
  /// its input part.
  std::int64_t activations = 1;
  /// Kept from the end of the input part to the end of the weight part of backward.
  std::int64_t weight_inputs = 1;
  /// The inputs of recomputation. If activations are recomputed, only these are kept from forward
  /// on, until the end of backward or its input part.
  std::int64_t stage_inputs = 0;
  /// The maximum during a backward (or input part) that itself recomputes some activations,
  /// including what it still keeps then. 0 if it does not recompute.
  std::int64_t rebuilding = 0;
};

/// The maximum memory of one rank.
struct RankMemory {
  /// The maximum number of bytes.
  std::int64_t peak_bytes = 0;
  /// The position of the action after which, or of the backward during which, the maximum is
  /// reached first.
  std::size_t peak_position = 0;
  /// The maximum number of pairs of stage and micro-batch that are between their forward and their
  /// backward or its input part, including those that are offloaded or will be recomputed.
  int peak_forwards = 0;
  /// The same count up to the weight part.
  int peak_unfinished = 0;
};

/// Returns the maximum memory of every rank of a verified schedule. Offloaded activations do not
/// count until they are loaded. Messages that wait do not count. Throws UsageError if the number of
/// `bytes` does not match.
/// @param schedule a verified schedule.
/// @param bytes one value for all stages, or one per stage.
std::vector<RankMemory> peak_memory(const Schedule& schedule, std::span<const StageBytes> bytes);

}  // namespace trireme::schedule

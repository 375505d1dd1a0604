// SPDX-License-Identifier: Apache-2.0
// Generators of known schedules. They only order computation; `with_messages` (passes.h) adds the
// messages. Every stage computes its weight gradients in the order of micro-batches. All generators
// throw UsageError for counts below 1.
#pragma once

#include <trireme/schedule/schedule.h>

#include <array>
#include <string_view>

namespace trireme::schedule {

/// Throws UsageError for counts below 1, and if `ranks * chunks * micro_batches` is too large for
/// any machine. All functions below call it first.
/// @param ranks the number of ranks.
/// @param micro_batches the number of micro-batches.
/// @param chunks the number of stages per rank.
void check_counts(int ranks, int micro_batches, int chunks = 1);

/// Returns a GPipe schedule: all forwards, then all backwards, with one stage per rank. Every rank
/// keeps all micro-batches at the same time. Huang et al. (2019), "GPipe".
Schedule gpipe(int ranks, int micro_batches);

/// Returns a 1F1B schedule: forwards and backwards alternate, with one stage per rank. Rank r keeps
/// at most `ranks - r` micro-batches. Narayanan et al. (2019), "PipeDream", with a flush at the end
/// of each step as in Megatron-LM.
Schedule one_forward_one_backward(int ranks, int micro_batches);

/// Returns an interleaved 1F1B schedule with `chunks` stages per rank, placed round-robin. Bubbles
/// are shorter by the factor `chunks`, but there are more messages, and more activations are kept.
/// Micro-batches pass through a chunk in groups of `ranks`, or somewhat larger groups if the counts
/// do not divide. Narayanan et al. (2021), section 2.2.
Schedule interleaved(int ranks, int micro_batches, int chunks);

/// Returns a ZB-H1 schedule: 1F1B with backward split in two parts. Weight parts are delayed as
/// long as the memory of rank 0 in 1F1B permits, and fill what would be bubbles. Qi et al., "Zero
/// Bubble Pipeline Parallelism" (ICLR 2024), section 2.
Schedule zero_bubble_h1(int ranks, int micro_batches);

/// Returns a ZB-H2 schedule, with twice the memory of ZB-H1. It has no bubble if the three parts
/// take equal time and the optimizer step does not wait for other ranks.
Schedule zero_bubble_h2(int ranks, int micro_batches);

/// Returns a ZB-V schedule. Each rank has two stages, placed in a V, so that the first and the last
/// stage are on the same rank. It has no bubble if the three parts take equal time. It needs the
/// memory of 1F1B, equally on all ranks. Qi et al., "Pipeline Parallelism with Controllable Memory"
/// (2024), and the longer version of the paper above.
Schedule zero_bubble_v(int ranks, int micro_batches);

/// The names of the schedules that `generate` accepts.
inline constexpr std::array<std::string_view, 6> kKinds = {"gpipe", "1f1b",  "interleaved",
                                                           "zb-h1", "zb-h2", "zb-v"};

/// Returns the schedule with the given name. Throws UsageError for an unknown name, and for a
/// number of chunks that the kind does not support.
/// @param kind one of kKinds.
/// @param ranks the number of ranks.
/// @param micro_batches the number of micro-batches.
/// @param chunks the number of stages per rank. 0 means the default of the kind: 2 for interleaved
/// and zb-v, otherwise 1.
Schedule generate(std::string_view kind, int ranks, int micro_batches, int chunks = 0);

}  // namespace trireme::schedule

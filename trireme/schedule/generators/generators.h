// SPDX-License-Identifier: Apache-2.0
// Known schedules. All of them order computation alone; `with_messages` adds the messages. Every
// stage computes its weight gradients in the order of micro-batches. Throw UsageError for counts
// below 1.
#pragma once

#include <trireme/schedule/schedule.h>

#include <array>
#include <string_view>

namespace trireme::schedule {

/// Throws UsageError for counts below 1, and for so many forwards, `ranks * chunks *
/// micro_batches`, that no machine holds the schedule. Every function below does it first.
void check_counts(int ranks, int micro_batches, int chunks = 1);

/// All forwards, then all backwards, one stage on each rank. Keeps every micro-batch at once.
/// Huang et al. (2019), "GPipe".
Schedule gpipe(int ranks, int micro_batches);

/// One forward, one backward in turn: rank r keeps at most `ranks - r` micro-batches.
/// Narayanan et al. (2019), "PipeDream"; flushed at the end of each step, as in Megatron-LM.
Schedule one_forward_one_backward(int ranks, int micro_batches);

/// The same with `chunks` stages on each rank, that go round: bubbles are shorter by that factor,
/// messages more, and more is kept. Micro-batches pass a chunk in groups of `ranks`, or of somewhat
/// more where they do not divide. Narayanan et al. (2021), section 2.2.
Schedule interleaved(int ranks, int micro_batches, int chunks);

/// As one_forward_one_backward, with backward in two parts: weight parts wait as long as the memory
/// of rank 0 in 1F1B allows, and fill what would be bubbles. Qi et al., "Zero Bubble Pipeline
/// Parallelism" (ICLR 2024), section 2.
Schedule zero_bubble_h1(int ranks, int micro_batches);

/// The same with twice the memory: no bubble where the three parts take the same time and a step
/// need not wait for other ranks.
Schedule zero_bubble_h2(int ranks, int micro_batches);

/// Two stages on each rank that go down and come back up, so that the last stage is on the rank of
/// the first: no bubble in the memory of 1F1B, the same on every rank, where the three parts take
/// the same time. Qi et al., "Pipeline Parallelism with Controllable Memory" (2024), and the longer
/// version of the paper above.
Schedule zero_bubble_v(int ranks, int micro_batches);

/// `gpipe`, `1f1b`, `interleaved`, `zb-h1`, `zb-h2`, `zb-v`.
inline constexpr std::array<std::string_view, 6> kKinds = {"gpipe", "1f1b",  "interleaved",
                                                           "zb-h1", "zb-h2", "zb-v"};

/// Returns the schedule of one of these names. @param chunks stages of each rank, 0 for what the
/// kind has: 1, but 2 for interleaved and zb-v. Throws UsageError for another name, and for chunks
/// that the kind does not have.
Schedule generate(std::string_view kind, int ranks, int micro_batches, int chunks = 0);

}  // namespace trireme::schedule

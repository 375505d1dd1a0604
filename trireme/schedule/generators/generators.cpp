// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/generators.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/schedule/generators/order.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <utility>

namespace trireme::schedule {
namespace {}  // namespace

void check_positive(const char* what, int count) {
  if (count >= 1) return;
  throw UsageError(join_message("a schedule of ", count, " ", what),
                   "expected 1 or more of ranks, micro-batches and chunks");
}

void check_counts(int ranks, int micro_batches, int chunks) {
  check_positive("ranks", ranks);
  check_positive("micro-batches", micro_batches);
  check_positive("chunks on each rank", chunks);
  // Computed in floating point, because the product of the three may overflow an integer.
  const double pairs = static_cast<double>(ranks) * chunks * micro_batches;
  if (pairs <= static_cast<double>(kMostPairs)) return;
  throw UsageError(join_message("a schedule of ", ranks, " ranks, ", micro_batches,
                                " micro-batches and ", chunks, " chunks on each rank"),
                   join_message("expected at most ", kMostPairs,
                                " pairs of stage and micro-batch, the product of all three"));
}

Schedule without_actions(std::string name, std::vector<int> rank_of_stage, int ranks,
                         int micro_batches) {
  Schedule schedule{.name = std::move(name),
                    .micro_batches = micro_batches,
                    .rank_of_stage = std::move(rank_of_stage)};
  schedule.edges = chain(schedule.num_stages());
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  return schedule;
}

Schedule gpipe(int ranks, int micro_batches) {
  check_counts(ranks, micro_batches);
  Schedule schedule = without_actions("gpipe", looped_placement(ranks, 1), ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        item(schedule.ranks, rank).push_back({kind, rank, micro_batch});
      }
    }
  }
  return schedule;
}

Schedule one_forward_one_backward(int ranks, int micro_batches) {
  check_counts(ranks, micro_batches);
  Schedule schedule = without_actions("1f1b", looped_placement(ranks, 1), ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& actions = item(schedule.ranks, rank);
    int forwards = 0;
    const auto forward = [&] {
      if (forwards < micro_batches) actions.push_back({ActionKind::kForward, rank, forwards++});
    };
    // Rank r starts with p - r forwards, so that the last rank can begin its first backward
    // immediately.
    for (int warm_up = rank; warm_up < ranks; ++warm_up) forward();
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      actions.push_back({ActionKind::kBackward, rank, micro_batch});
      forward();
    }
  }
  return schedule;
}

Schedule generate(std::string_view kind, int ranks, int micro_batches, int chunks) {
  if (std::ranges::find(kKinds, kind) == kKinds.end()) {
    throw UsageError(join_message("no schedule is called '", kind, "'"),
                     join_message("there are ", list_text(kKinds)));
  }
  if (kind == "interleaved") return interleaved(ranks, micro_batches, chunks == 0 ? 2 : chunks);
  const int own_chunks = kind == "zb-v" ? 2 : 1;
  if (chunks != 0 && chunks != own_chunks) {
    throw UsageError(join_message("a schedule ", kind, " of ", chunks, " chunks on each rank"),
                     join_message(kind, " has ", own_chunks, "; interleaved takes any number"));
  }
  if (kind == "gpipe") return gpipe(ranks, micro_batches);
  if (kind == "1f1b") return one_forward_one_backward(ranks, micro_batches);
  if (kind == "zb-h1") return zero_bubble_h1(ranks, micro_batches);
  if (kind == "zb-h2") return zero_bubble_h2(ranks, micro_batches);
  return zero_bubble_v(ranks, micro_batches);
}

}  // namespace trireme::schedule

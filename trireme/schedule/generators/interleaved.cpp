// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B. Every rank has one order of forwards and one order of backwards, and stays a
// fixed number of forwards ahead of its backwards.
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/order.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme::schedule {
namespace {

struct Turn {
  int chunk = 0;
  int micro_batch = 0;
};

// Splits micro-batches into groups of `ranks`, or somewhat more if the counts do not divide. In a
// smaller group, the first micro-batch would not have returned from the last rank when its next
// chunk is due.
std::vector<int> groups_of(int ranks, int micro_batches) {
  const int num_groups = std::max(1, micro_batches / ranks);
  std::vector<int> sizes;
  for (int group = 0; group < num_groups; ++group) {
    sizes.push_back(micro_batches / num_groups + (group < micro_batches % num_groups ? 1 : 0));
  }
  return sizes;
}

// Returns the order of forwards: for each group, all chunks in turn.
std::vector<Turn> order_of(const std::vector<int>& groups, int chunks) {
  std::vector<Turn> order;
  int first = 0;
  for (const int size : groups) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = first; i < first + size; ++i) order.push_back({chunk, i});
    }
    first += size;
  }
  return order;
}

}  // namespace

Schedule interleaved(int ranks, int micro_batches, int chunks) {
  check_counts(ranks, micro_batches, chunks);
  Schedule schedule =
      chunks == 1 ? one_forward_one_backward(ranks, micro_batches)
                  : without_actions("", looped_placement(ranks, chunks), ranks, micro_batches);
  schedule.name = "interleaved";
  if (chunks == 1) return schedule;

  const std::vector<int> groups = groups_of(ranks, micro_batches);
  const std::vector<Turn> order = order_of(groups, chunks);
  for (int rank = 0; rank < ranks; ++rank) {
    // The number of forwards before the first backward: those that precede it in the order, and two
    // for each rank between this one and the last.
    const int ahead = (chunks - 1) * groups.front() + 2 * (ranks - 1 - rank) + 1;
    std::size_t forwards = 0;
    for (std::size_t backwards = 0; backwards < order.size(); ++backwards) {
      const std::size_t wanted =
          std::min(order.size(), backwards + static_cast<std::size_t>(ahead));
      for (; forwards < wanted; ++forwards) {
        const auto [chunk, micro_batch] = order[forwards];
        item(schedule.ranks, rank)
            .push_back({ActionKind::kForward, chunk * ranks + rank, micro_batch});
      }
      const auto [chunk, micro_batch] = order[backwards];  // backwards start at the last chunk
      item(schedule.ranks, rank)
          .push_back({ActionKind::kBackward, (chunks - 1 - chunk) * ranks + rank, micro_batch});
    }
  }
  return schedule;
}

}  // namespace trireme::schedule

// SPDX-License-Identifier: Apache-2.0
// The hand-made zero-bubble schedules. With three ranks and five micro-batches, where digits are
// forwards, small letters are input parts, and capitals are weight parts of micro-batches a to e:
//
//   H1  0: 0 1 2 . . . . . . a A 3 b B 4 c C d D e E
//       1:   0 1 . . . . a   2 b A 3 c B 4 d C e D E
//       2:     0 a 1 b 2 c A 3 d B 4 e C D E
//
// Rank r runs `warm_up` forwards before its first backward, and its weight parts are `delay` behind
// its input parts. It keeps warm_up + delay micro-batches: p on every rank in H1, 2 p - 1 in H2.
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/order.h>

#include <algorithm>

namespace trireme::schedule {
namespace {

void write_rank(Schedule& schedule, int rank, int warm_up, int delay) {
  auto& actions = item(schedule.ranks, rank);
  int forwards = 0;
  int weights = 0;
  const auto forward = [&] {
    if (forwards == schedule.micro_batches) return;
    actions.push_back({ActionKind::kForward, rank, forwards++});
  };
  const auto weight = [&] { actions.push_back({ActionKind::kBackwardWeight, rank, weights++}); };
  while (forwards < std::min(warm_up, schedule.micro_batches)) forward();
  for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
    actions.push_back({ActionKind::kBackwardInput, rank, micro_batch});
    if (micro_batch >= delay) weight();
    forward();
  }
  while (weights < schedule.micro_batches) weight();
}

// Writes one rank of ZB-V. It generates so many micro-batches that all phases exist, and leaves out
// those beyond the wanted number. That is possible because no micro-batch depends on another.
class RankOfV {
 public:
  RankOfV(Schedule& schedule, int rank)
      : actions_(item(schedule.ranks, rank)),
        wanted_(schedule.micro_batches),
        all_(std::max(schedule.micro_batches, 2 * schedule.num_ranks())),
        ranks_(schedule.num_ranks()),
        rank_(rank) {}

  void write() {
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) forward(kDown);
    for (int i = 0; i < rank_; ++i) {
      forward(kUp);
      forward(kDown);
    }
    for (int i = rank_; i < ranks_; ++i) {
      forward(kUp);
      input(kUp);
      weight(kUp);
    }
    while (up_.forwards < all_) {
      if (down_.forwards < all_) forward(kDown);
      input(kDown);
      weight(kDown);
      forward(kUp);
      input(kUp);
      weight(kUp);
    }
    for (int i = 0; i < rank_; ++i) {
      input(kDown);
      input(kUp);
    }
    while (down_.inputs < all_) {
      input(kDown);
      weight(kDown);
    }
    while (up_.weights < all_) weight(kUp);
    while (down_.weights < all_) weight(kDown);
  }

 private:
  enum Way { kDown, kUp };

  struct Done {
    int forwards = 0;
    int inputs = 0;
    int weights = 0;
  };

  Done& done(Way way) { return way == kDown ? down_ : up_; }

  void write(ActionKind kind, Way way, int micro_batch) {
    const int stage = way == kDown ? rank_ : 2 * ranks_ - 1 - rank_;
    if (micro_batch < wanted_) actions_.push_back({kind, stage, micro_batch});
  }
  void forward(Way way) { write(ActionKind::kForward, way, done(way).forwards++); }
  void input(Way way) { write(ActionKind::kBackwardInput, way, done(way).inputs++); }
  void weight(Way way) { write(ActionKind::kBackwardWeight, way, done(way).weights++); }

  std::vector<Action>& actions_;
  int wanted_;
  int all_;
  int ranks_;
  int rank_;
  Done down_;
  Done up_;
};

}  // namespace

Schedule zero_bubble_h1(int ranks, int micro_batches) {
  check_counts(ranks, micro_batches);
  Schedule schedule = without_actions("zb-h1", looped_placement(ranks, 1), ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) write_rank(schedule, rank, ranks - rank, rank);
  return schedule;
}

Schedule zero_bubble_h2(int ranks, int micro_batches) {
  check_counts(ranks, micro_batches);
  Schedule schedule = without_actions("zb-h2", looped_placement(ranks, 1), ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    write_rank(schedule, rank, 2 * (ranks - rank) - 1, 2 * rank);
  }
  return schedule;
}

Schedule zero_bubble_v(int ranks, int micro_batches) {
  check_counts(ranks, micro_batches, 2);
  Schedule schedule = without_actions("zb-v", v_placement(ranks), ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) RankOfV(schedule, rank).write();
  return schedule;
}

}  // namespace trireme::schedule

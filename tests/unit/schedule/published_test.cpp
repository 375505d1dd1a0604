// SPDX-License-Identifier: Apache-2.0
// The bubble rates that Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), print for the
// times that they measured: forward, input backward, weight backward, communication in ms.
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>

#include <gtest/gtest.h>
#include <tests/unit/schedule/parts.h>

#include <cmath>

namespace trireme::schedule {
namespace {

struct Published {
  int ranks;
  int micro_batches;
  Times times;
  double one_forward_one_backward;
  double zero_bubble_h1;
  double zero_bubble_h2;
};

std::vector<Published> published() {
  return {{8, 24, times_of_all(18.522, 18.086, 9.337, 0.601), 0.2431, 0.1585, 0.1083},
          {16, 48, times_of_all(11.347, 11.248, 8.132, 0.377), 0.2552, 0.1397, 0.0672}};
}

// To the four digits that are printed, which have to be these and not only near them.
void expect_rate(const Schedule& schedule, const Published& setup, double rate) {
  for (const Schedule& form : {schedule, with_messages(schedule)}) {
    const Timeline timeline = simulate(form, setup.times);
    EXPECT_EQ(std::llround(timeline.bubble_rate() * 1e4), std::llround(rate * 1e4))
        << schedule.name << ": " << timeline.bubble_rate();
    const StageTimes& stage = setup.times.stages.front();
    const double work =
        setup.micro_batches * (stage.forward + stage.backward_input + stage.backward_weight);
    EXPECT_NEAR(timeline.bubble_rate(),
                (timeline.longest_rank_time - work) / timeline.longest_rank_time, 1e-12);
  }
}

TEST(Published, BubbleRatesOfOneForwardOneBackward) {
  for (const Published& setup : published()) {
    expect_rate(one_forward_one_backward(setup.ranks, setup.micro_batches), setup,
                setup.one_forward_one_backward);
  }
}

TEST(Published, BubbleRatesOfZeroBubbleH1) {
  for (const Published& setup : published()) {
    expect_rate(zero_bubble_h1(setup.ranks, setup.micro_batches), setup, setup.zero_bubble_h1);
  }
}

TEST(Published, BubbleRatesOfZeroBubbleH2) {
  for (const Published& setup : published()) {
    expect_rate(zero_bubble_h2(setup.ranks, setup.micro_batches), setup, setup.zero_bubble_h2);
  }
}

}  // namespace
}  // namespace trireme::schedule

// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/timeline.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

#include <limits>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

TEST(Timeline, BeginsAnActionWhenItsRankIsFreeAndItsMessageIsThere) {
  const Timeline timeline = simulate(two_ranks(), times_of_all(2, 3, 4, 0.5));
  const auto& [first, second] = std::tie(timeline.ranks[0], timeline.ranks[1]);
  ASSERT_EQ(first.size(), 4U);
  EXPECT_DOUBLE_EQ(first[0].end, 2);       // F0.0
  EXPECT_DOUBLE_EQ(first[1].end, 2);       // S0.0>1 takes none of its rank's time
  EXPECT_DOUBLE_EQ(second[0].begin, 2.5);  // R1.0<0
  EXPECT_DOUBLE_EQ(second[1].end, 4.5);    // F1.0
  EXPECT_DOUBLE_EQ(second[2].end, 11.5);   // B1.0, both parts
  EXPECT_DOUBLE_EQ(first[2].begin, 12);    // R0.0<1
  EXPECT_DOUBLE_EQ(first[3].end, 19);
  EXPECT_DOUBLE_EQ(timeline.step_time, 19);
  EXPECT_DOUBLE_EQ(timeline.longest_rank_time, 19);
  EXPECT_DOUBLE_EQ(timeline.compute_time, 9);
  EXPECT_DOUBLE_EQ(timeline.bubble_rate(), 10.0 / 19);
}

TEST(Timeline, HasTimesOfItsOwnForEveryStageAndEdge) {
  const Schedule schedule = schedule_of({"F0.0 B0.0", "F1.0 B1.0", "F2.0 B2.0"});
  const Times times{.stages = {{.forward = 1, .backward = 10},
                               {.forward = 2, .backward = 20},
                               {.forward = 3, .backward = 30}},
                    .communication = {0.25, 0.5}};
  const Timeline timeline = simulate(schedule, times);
  EXPECT_DOUBLE_EQ(timeline.ranks[1][0].begin, 1.25);
  EXPECT_DOUBLE_EQ(timeline.ranks[2][0].begin, 3.75);
  EXPECT_DOUBLE_EQ(timeline.ranks[2][1].end, 36.75);
  EXPECT_DOUBLE_EQ(timeline.ranks[1][1].begin, 37.25);
  EXPECT_DOUBLE_EQ(timeline.ranks[0][1].begin, 57.5);
  EXPECT_DOUBLE_EQ(timeline.step_time, 67.5);
}

TEST(Timeline, IsTheSameWithMessagesAsWithout) {
  const Times times = times_of_all(1.7, 1.9, 0.8, 0.3);
  for (const std::string_view kind : kKinds) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
        const Schedule schedule = generate(kind, ranks, micro_batches);
        EXPECT_NEAR(simulate(schedule, times).step_time,
                    simulate(with_messages(schedule), times).step_time, 1e-9)
            << kind << ", " << ranks << " ranks, " << micro_batches << " micro-batches";
      }
    }
  }
}

TEST(Timeline, HoldsRanksUpWhileTheySendAndReceive) {
  Times times = times_of_all(1, 1, 1, 0.5);
  times.send = 0.2;
  times.receive = 0.1;
  const Timeline timeline = simulate(two_ranks(), times);
  EXPECT_DOUBLE_EQ(timeline.ranks[0][1].end, 1.2);
  EXPECT_DOUBLE_EQ(timeline.ranks[1][0].begin, 1.5);
  EXPECT_DOUBLE_EQ(timeline.ranks[1][0].end, 1.6);
  EXPECT_DOUBLE_EQ(timeline.ranks[1][1].end, 2.6);
}

TEST(Timeline, WaitsForRoomWhereFewMessagesMayBeOutstanding) {
  const Schedule schedule = schedule_of({"F0.0 S0.0>1 F0.1 S0.1>1 R0.0<1 B0.0 R0.1<1 B0.1",
                                         "R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0"},
                                        2);
  const Times times = times_of_all(1, 1, 2, 0.5);
  EXPECT_DOUBLE_EQ(simulate(schedule, times).ranks[0][3].begin, 2);
  // The first message is received at 1.5, so that the second may go at 2 also with room for one.
  EXPECT_DOUBLE_EQ(simulate(schedule, times, {.outstanding = 1}).ranks[0][3].begin, 2);
  // Rendezvous: the second is taken only after the first backward there.
  const Timeline rendezvous = simulate(
      with_messages(without_messages(schedule), {.outstanding = 0}), times, {.outstanding = 0});
  EXPECT_GT(rendezvous.step_time, simulate(schedule, times).step_time);
}

TEST(Timeline, CountsRecomputationAsWork) {
  const Schedule schedule = with_recomputation(schedule_of({"F0.0 I0.0 W0.0"}), std::vector{0});
  Times times = times_of_all(2, 3, 4);
  EXPECT_DOUBLE_EQ(simulate(schedule, times).step_time, 11);
  EXPECT_DOUBLE_EQ(simulate(schedule, times).compute_time, 11);
  times.stages[0].recompute = 1.5;
  EXPECT_DOUBLE_EQ(simulate(schedule, times).step_time, 10.5);
}

TEST(Timeline, TakesTheTimesOfAllActions) {
  const Schedule schedule =
      schedule_of({"gather0 F0.0 offload0.0 load0.0 B0.0 free0 reduce0 step0"});
  const Times times{.stages = {{.forward = 1,
                                .backward = 2,
                                .gather = 4,
                                .free = 8,
                                .reduce = 16,
                                .offload = 32,
                                .load = 64,
                                .step = 128}}};
  EXPECT_DOUBLE_EQ(simulate(schedule, times).step_time, 255);
  EXPECT_DOUBLE_EQ(simulate(schedule, times).compute_time, 3);
}

TEST(Timeline, IsOfVerifiedSchedulesOnly) {
  EXPECT_THAT(test::message_of<UsageError>([] { simulate(schedule_of({"B0.0 F0.0"}), Times{}); }),
              HasSubstr("comes before F0.0"));
}

TEST(Timeline, RefusesTimesThatDoNotFit) {
  const Schedule schedule = two_ranks();
  const auto refused = [&](auto change) {
    Times times;
    change(times);
    return test::message_of<UsageError>([&] { simulate(schedule, times); });
  };
  EXPECT_THAT(refused([](Times& times) { times.stages.resize(3); }),
              HasSubstr("there are times of 3 stages, expected 1 or 2"));
  EXPECT_THAT(refused([](Times& times) { times.communication = {1, 2}; }),
              HasSubstr("there are times of 2 edges, expected 1 or 1"));
  EXPECT_THAT(refused([](Times& times) { times.stages[0].forward = -1; }),
              HasSubstr("the time of forward is -1"));
  EXPECT_THAT(refused([](Times& times) {
                times.stages[0].step = std::numeric_limits<double>::quiet_NaN();
              }),
              HasSubstr("the time of the step is nan"));
  EXPECT_THAT(refused([](Times& times) { times.communication = {-0.5}; }),
              HasSubstr("the time of communication is -0.5"));
}

// F0 F1 O0 F2 O1 L0 F3 O2 L1 B0 O3 L2 B1 L3 B2 B3 on one rank. Copies take 3: to the host from the
// end of forward on, where an offload waits for its copy; back beside computation, where a backward
// waits.
TEST(Timeline, CopiesActivationsOneAfterTheOtherInEachDirection) {
  const std::vector<int> stages = {0};
  const Schedule schedule = with_offloading(generate("gpipe", 1, 4), stages);
  const Times times{.stages = {{.forward = 1, .backward = 2, .copy = 3}}};
  const Timeline timeline = simulate(schedule, times);
  const auto end_of = [&](ActionKind kind, int micro_batch) {
    for (const Span& span : timeline.ranks.front()) {
      if (span.action.kind == kind && span.action.micro_batch == micro_batch) return span.end;
    }
    return -1.0;
  };
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kForward, 1), 2);
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kOffload, 0), 4);  // copied from 1 on
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kOffload, 1), 7);  // after the copy before it
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kOffload, 2), 10);
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kBackward, 0), 12);  // loaded from 7 to 10
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kOffload, 3), 13);
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kBackward, 1), 15);  // loaded until 13
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kBackward, 2), 18);  // loaded until 16
  EXPECT_DOUBLE_EQ(end_of(ActionKind::kBackward, 3), 21);  // loaded until 19
  EXPECT_DOUBLE_EQ(timeline.step_time, 21);
}

}  // namespace
}  // namespace trireme::schedule

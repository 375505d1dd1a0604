// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/passes.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/verifier/verify.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

std::string text_of(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& listed : item(schedule.ranks, rank)) {
    text += (text.empty() ? "" : " ") + to_text(listed);
  }
  return text;
}

TEST(WithMessages, SendsAtOnceAndReceivesAsLateAsPossible) {
  const Schedule schedule = with_messages(one_forward_one_backward(2, 2));
  EXPECT_EQ(text_of(schedule, 0), "F0.0 S0.0>1 F0.1 S0.1>1 R0.0<1 B0.0 R0.1<1 B0.1");
  EXPECT_EQ(text_of(schedule, 1), "R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0");
}

TEST(WithMessages, ReceivesOlderMessagesOfARankFirst) {
  // Rank 0 sends activations of stages 0 and 2 to rank 1, and gradients of stage 2.
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const Schedule schedule = with_messages(interleaved(ranks, 6, 3));
    EXPECT_TRUE(
        find_errors(schedule, {.messages = {.matching = Messages::Matching::kInOrder}}).empty());
    EXPECT_TRUE(
        find_errors(schedule, {.messages = {.matching = Messages::Matching::kByTag}}).empty());
  }
}

TEST(WithMessages, MakesSendsAndReceivesMeetWhereTheyMustNotWait) {
  const Schedule late = with_messages(one_forward_one_backward(3, 4));
  EXPECT_FALSE(find_errors(late, {.messages = {.outstanding = 0}}).empty());
  const Schedule met = with_messages(one_forward_one_backward(3, 4), {.outstanding = 0});
  EXPECT_TRUE(find_errors(met, {.messages = {.outstanding = 0}}).empty());
  EXPECT_TRUE(find_errors(met).empty());
}

TEST(WithMessages, GoesOverEdgesThatSkipStages) {
  Schedule schedule = schedule_of({"F0.0 B0.0", "F1.0 B1.0", "F2.0 B2.0"});
  schedule.edges = {{0, 1}, {1, 2}, {0, 2}};
  const Schedule with = with_messages(schedule);
  EXPECT_EQ(text_of(with, 0), "F0.0 S0.0>1 S0.0>2 R0.0<1 R0.0<2 B0.0");
  EXPECT_EQ(text_of(with, 2), "R2.0<0 R2.0<1 F2.0 B2.0 S2.0>0 S2.0>1");
}

TEST(WithMessages, SendsNothingBetweenStagesOfOneRank) {
  const Schedule schedule = with_messages(zero_bubble_v(1, 3));
  EXPECT_FALSE(lists_messages(schedule));
  EXPECT_EQ(text_of(with_messages(zero_bubble_v(2, 1)), 1),
            "R1.0<0 F1.0 F2.0 S2.0>3 R2.0<3 I2.0 W2.0 I1.0 S1.0>0 W1.0");
}

TEST(WithMessages, IsForSchedulesWithoutThem) {
  EXPECT_THAT(test::message_of<UsageError>([] { with_messages(two_ranks()); }),
              HasSubstr("there are messages among the actions"));
  EXPECT_THAT(test::message_of<UsageError>([] { with_messages(schedule_of({"B0.0 F0.0"})); }),
              HasSubstr("comes before F0.0"));
  EXPECT_EQ(without_messages(with_messages(gpipe(3, 4))), gpipe(3, 4));
}

TEST(Passes, KeepTheFirstMicroBatches) {
  for (const std::string_view kind : kKinds) {
    const Schedule whole = with_messages(generate(kind, 2, 5));
    EXPECT_EQ(with_first(whole, 5), whole);
    const Schedule fewer = with_first(whole, 3);
    EXPECT_EQ(fewer.micro_batches, 3);
    EXPECT_NO_THROW(verify(fewer)) << kind;
    EXPECT_TRUE(keeps_order_of_gradients(fewer));
  }
  EXPECT_EQ(text_of(with_first(with_steps(one_forward_one_backward(2, 3)), 1), 1),
            "F1.0 B1.0 step1");
  for (const int count : {0, 4}) {
    EXPECT_THAT(test::message_of<UsageError>([&] { with_first(gpipe(2, 3), count); }),
                HasSubstr("schedule 'gpipe' is for 3 micro-batches, and "));
  }
}

TEST(Passes, SplitBackwards) {
  EXPECT_EQ(text_of(with_split_backward(schedule_of({"F0.0 B0.0 F0.1 B0.1"}, 2)), 0),
            "F0.0 I0.0 W0.0 F0.1 I0.1 W0.1");
}

TEST(Passes, RecomputeRightBeforeBackward) {
  const Schedule schedule = with_recomputation(one_forward_one_backward(2, 2), std::vector{0});
  EXPECT_EQ(text_of(schedule, 0), "F0.0 F0.1 recompute0.0 B0.0 recompute0.1 B0.1");
  EXPECT_EQ(text_of(schedule, 1), "F1.0 B1.0 F1.1 B1.1");
  EXPECT_EQ(text_of(with_messages(schedule), 0),
            "F0.0 S0.0>1 F0.1 S0.1>1 recompute0.0 R0.0<1 B0.0 recompute0.1 R0.1<1 B0.1");
  EXPECT_THAT(test::message_of<UsageError>([] { with_recomputation(gpipe(2, 2), std::vector{2}); }),
              HasSubstr("stage 2 is to be recomputed, but stages are 0 to 1"));
}

TEST(WithOffloading, LeavesTimeForCopiesBesideComputation) {
  const Schedule schedule = schedule_of({"F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3"}, 4);
  const std::vector stages = {0};
  EXPECT_EQ(text_of(with_offloading(schedule, stages, 0), 0),
            "F0.0 offload0.0 F0.1 offload0.1 F0.2 offload0.2 F0.3 offload0.3 "
            "load0.0 B0.0 load0.1 B0.1 load0.2 B0.2 load0.3 B0.3");
  EXPECT_EQ(text_of(with_offloading(schedule, stages), 0),
            "F0.0 F0.1 offload0.0 F0.2 offload0.1 load0.0 F0.3 offload0.2 load0.1 B0.0 "
            "offload0.3 load0.2 B0.1 load0.3 B0.2 B0.3");
  EXPECT_EQ(text_of(with_offloading(schedule, stages, 2), 0), text_of(schedule, 0));
}

TEST(WithOffloading, LeavesWhatIsSoonUsed) {
  const std::vector stages = {0, 1, 2, 3};
  const Schedule schedule = with_offloading(one_forward_one_backward(4, 6), stages);
  EXPECT_EQ(text_of(schedule, 3), text_of(one_forward_one_backward(4, 6), 3));
  EXPECT_EQ(text_of(schedule, 2), text_of(one_forward_one_backward(4, 6), 2));
  EXPECT_THAT(text_of(schedule, 0),
              testing::StartsWith("F0.0 F0.1 offload0.0 F0.2 offload0.1 load0.0 F0.3 "
                                  "offload0.2 B0.0"));
}

TEST(WithOffloading, IsForTheStagesThatAreNamed) {
  const Schedule schedule = with_offloading(gpipe(2, 6), std::vector{1});
  EXPECT_EQ(text_of(schedule, 0), text_of(gpipe(2, 6), 0));
  EXPECT_THAT(text_of(schedule, 1), HasSubstr("offload1.0"));
  EXPECT_THAT(test::message_of<UsageError>([] { with_offloading(gpipe(2, 2), std::vector{-1}); }),
              HasSubstr("stage -1 is to be offloaded, but stages are 0 to 1"));
  EXPECT_THAT(
      test::message_of<UsageError>([] { with_offloading(gpipe(2, 2), std::vector{1}, -1); }),
      HasSubstr("copies are to begin -1 computations ahead"));
}

// The inputs of a recomputation are what is offloaded, and messages go where computation needs
// them.
TEST(WithOffloading, LoadsBeforeRecomputationAndBeforeMessages) {
  const Schedule made = with_recomputation(gpipe(2, 3), std::vector{0});
  EXPECT_EQ(text_of(with_messages(with_offloading(made, std::vector{0}, 0)), 0),
            "F0.0 S0.0>1 offload0.0 F0.1 S0.1>1 offload0.1 F0.2 S0.2>1 offload0.2 "
            "load0.0 recompute0.0 R0.0<1 B0.0 load0.1 recompute0.1 R0.1<1 B0.1 "
            "load0.2 recompute0.2 R0.2<1 B0.2");
}

TEST(WithOffloading, KeepsFewMicroBatchesOnTheDevice) {
  const std::vector<StageBytes> bytes = {StageBytes{.activations = 100, .weight_inputs = 10}};
  const std::vector stages = {0, 1, 2, 3};
  const auto peak_of = [&](const Schedule& schedule) {
    return peak_memory(schedule, bytes).front().peak_bytes;
  };
  EXPECT_EQ(peak_of(gpipe(4, 12)), 1200);
  EXPECT_EQ(peak_of(with_offloading(gpipe(4, 12), stages, 0)), 100);
  EXPECT_EQ(peak_of(with_offloading(gpipe(4, 12), stages, 1)), 300);
  EXPECT_EQ(peak_of(with_offloading(gpipe(4, 12), stages, 2)), 500);
}

TEST(Passes, GatherParametersForAStepOrForRunsOfAStage) {
  const Schedule schedule = with_split_backward(interleaved(1, 2, 1));
  EXPECT_EQ(text_of(with_gathering(schedule, GatherFor::kStep), 0),
            "gather0 F0.0 I0.0 W0.0 F0.1 I0.1 free0 W0.1");
  const Schedule chunks = interleaved(1, 1, 2);
  EXPECT_EQ(text_of(chunks, 0), "F0.0 F1.0 B1.0 B0.0");
  EXPECT_EQ(text_of(with_gathering(chunks, GatherFor::kMicroBatch), 0),
            "gather0 F0.0 free0 gather1 F1.0 B1.0 free1 gather0 B0.0 free0");
  EXPECT_EQ(text_of(with_gathering(chunks, GatherFor::kStep), 0),
            "gather0 F0.0 gather1 F1.0 B1.0 free1 B0.0 free0");
}

TEST(Passes, ReduceAndStepAtTheEnd) {
  const Schedule schedule = schedule_of({"F0.0 I0.0 W0.0 F0.1 B0.1"}, 2);
  EXPECT_EQ(text_of(with_steps(with_reduction(schedule, ReduceAfter::kStage)), 0),
            "F0.0 I0.0 W0.0 F0.1 B0.1 reduce0 step0");
  EXPECT_EQ(text_of(with_reduction(schedule, ReduceAfter::kMicroBatch), 0),
            "F0.0 I0.0 W0.0 reduce0.0 F0.1 B0.1 reduce0.1");
}

TEST(Passes, MakeSchedulesThatCanBeExecutedTogether) {
  for (const std::string_view kind : kKinds) {
    for (const auto gather : {GatherFor::kStep, GatherFor::kMicroBatch}) {
      for (const auto reduce : {ReduceAfter::kStage, ReduceAfter::kMicroBatch}) {
        const Schedule recomputed = with_recomputation(generate(kind, 3, 5), std::vector{0, 2});
        for (const int ahead : {0, 1, 2}) {
          const Schedule made = with_offloading(recomputed, std::vector{0, 1, 2}, ahead);
          const Schedule schedule =
              with_messages(with_steps(with_reduction(with_gathering(made, gather), reduce)));
          const auto findings = find_errors(schedule);
          EXPECT_TRUE(findings.empty()) << findings.front().sentence;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::schedule

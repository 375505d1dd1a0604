// SPDX-License-Identifier: Apache-2.0
// Each fault by itself, and the sentence that it gets.
#include <trireme/schedule/verifier/verify.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

// The first finding's sentence.
std::string found(const Schedule& schedule, const VerifyOptions& options = {}) {
  const auto findings = find_errors(schedule, options);
  return findings.empty() ? "" : findings.front().sentence;
}

// One rank with one stage.
std::string found_alone(const std::string& actions, int micro_batches = 1) {
  return found(schedule_of({actions}, micro_batches));
}

TEST(Verify, AcceptsWhatIsRight) {
  EXPECT_EQ(found(two_ranks()), "");
  EXPECT_NO_THROW(verify(two_ranks()));
  EXPECT_EQ(found_alone("gather0 F0.0 offload0.0 load0.0 recompute0.0 I0.0 free0 W0.0 reduce0.0 "
                        "step0"),
            "");
}

TEST(Verify, LooksAtTheValuesAroundTheActions) {
  const auto changed = [](auto change) {
    Schedule schedule = two_ranks();
    change(schedule);
    return found(schedule);
  };
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.ranks.clear(); }), "there are no ranks");
  EXPECT_EQ(found({}), "there are no ranks");
  EXPECT_EQ(changed([](Schedule& schedule) {
              schedule.rank_of_stage.clear();
              schedule.edges.clear();
            }),
            "there are no stages");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.micro_batches = 0; }),
            "there are 0 micro-batches, expected 1 or more");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.rank_of_stage[1] = 2; }),
            "stage 1 is on rank 2, of 2 ranks");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.rank_of_stage[1] = -1; }),
            "stage 1 is on rank -1, of 2 ranks");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.ranks.emplace_back(); }),
            "rank 2 has no stage");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.edges = {{1, 0}}; }),
            "edge 1>0: expected an earlier and a later stage of 2");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.edges = {{0, 2}}; }),
            "edge 0>2: expected an earlier and a later stage of 2");
  EXPECT_EQ(changed([](Schedule& schedule) { schedule.edges = {{0, 1}, {0, 1}}; }),
            "edge 0>1 is there twice");
  EXPECT_THAT(changed([](Schedule& schedule) { schedule.micro_batches = 2'000'000'000; }),
              HasSubstr("there are 4000000000 pairs of stage and micro-batch, at most"));
  // Memory was taken for each edge and micro-batch, however many.
  EXPECT_THAT(changed([](Schedule& schedule) {
                constexpr int kStages = 2000;
                schedule.micro_batches = kStages;
                schedule.rank_of_stage.resize(kStages, 1);
                schedule.edges.clear();
                for (int to = 1; to < kStages; ++to) schedule.edges.push_back({0, to});
                for (int to = 2; to < kStages; ++to) schedule.edges.push_back({1, to});
              }),
              HasSubstr("there are 7994000 pairs of edge and micro-batch, at most"));
}

TEST(Verify, LooksAtEveryActionByItself) {
  const auto with_first = [](const Action& first) {
    Schedule schedule = two_ranks();
    schedule.ranks[0].front() = first;
    return found(schedule);
  };
  EXPECT_EQ(with_first(action("F2.0")),
            "rank 0, action 0 (F2.0): there is no stage 2; stages are 0 to 1");
  EXPECT_EQ(with_first({ActionKind::kForward, -1, 0}),
            "rank 0, action 0 (F-1.0): there is no stage -1; stages are 0 to 1");
  EXPECT_EQ(with_first(action("F1.0")), "rank 0, action 0 (F1.0): stage 1 is on rank 1");
  EXPECT_EQ(with_first(action("F0.1")),
            "rank 0, action 0 (F0.1): there is no micro-batch 1; they are 0 to 0");
  EXPECT_EQ(with_first({ActionKind::kForward, 0}),
            "rank 0, action 0 (F0): there is no micro-batch -1; they are 0 to 0");
  EXPECT_EQ(with_first({ActionKind::kStep, 0, 0}),
            "rank 0, action 0 (step0.0): it stands for all micro-batches and names one");
  EXPECT_EQ(with_first(action("S0.0>2")),
            "rank 0, action 0 (S0.0>2): stages 0 and 2 hand nothing to each other");
  EXPECT_EQ(with_first({ActionKind::kReceive, 0, 0, 0}),
            "rank 0, action 0 (R0.0<0): stages 0 and 0 hand nothing to each other");
  Schedule v = with_messages(zero_bubble_v(2, 1));
  v.ranks[1].push_back(action("S1.0>2"));
  EXPECT_EQ(found(v),
            "rank 1, action 10 (S1.0>2): stages 1 and 2 are both on rank 1, so there is no "
            "message");
}

TEST(Verify, NamesEveryActionThatIsMissing) {
  const Schedule whole = with_steps(with_messages(one_forward_one_backward(3, 4)));
  for (int rank = 0; rank < whole.num_ranks(); ++rank) {
    for (std::size_t position = 0; position < item(whole.ranks, rank).size(); ++position) {
      Schedule schedule = whole;
      auto& actions = item(schedule.ranks, rank);
      const Action dropped = actions[position];
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(position));
      const auto findings = find_errors(schedule);
      ASSERT_EQ(findings.size(), 1U) << to_text(dropped);
      EXPECT_EQ(findings[0].rank, rank);
      EXPECT_EQ(findings[0].position, std::nullopt);
      EXPECT_THAT(findings[0].sentence,
                  testing::StartsWith("rank " + std::to_string(rank) + ": " + to_text(dropped) +
                                      " is missing, the " + describe(dropped)));
    }
  }
}

TEST(Verify, NamesEveryActionThatIsThereTwice) {
  const Schedule whole = with_steps(with_messages(zero_bubble_h1(3, 4)));
  for (int rank = 0; rank < whole.num_ranks(); ++rank) {
    for (std::size_t position = 0; position < item(whole.ranks, rank).size(); ++position) {
      Schedule schedule = whole;
      auto& actions = item(schedule.ranks, rank);
      actions.push_back(actions[position]);
      const auto findings = find_errors(schedule);
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_EQ(findings[0].rank, rank);
      EXPECT_EQ(findings[0].position, actions.size() - 1);
      EXPECT_THAT(findings[0].sentence,
                  HasSubstr("comes again; it is action " + std::to_string(position) + " already"));
    }
  }
}

TEST(Verify, WantsBackwardWholeOrInItsTwoParts) {
  EXPECT_EQ(found_alone("F0.0"),
            "rank 0: B0.0 is missing, the backward of micro-batch 0 in stage 0, whole or in its "
            "two parts");
  EXPECT_EQ(found_alone("F0.0 I0.0"),
            "rank 0: W0.0 is missing, the weight backward of micro-batch 0 in stage 0");
  EXPECT_EQ(found_alone("F0.0 W0.0"),
            "rank 0: I0.0 is missing, the input backward of micro-batch 0 in stage 0");
  EXPECT_EQ(found_alone("F0.0 B0.0 I0.0"),
            "rank 0, action 2 (I0.0): the backward is whole already, as B0.0 (action 1)");
  EXPECT_EQ(found_alone("F0.0 I0.0 W0.0 B0.0"),
            "rank 0, action 1 (I0.0): the backward is whole already, as B0.0 (action 3)");
}

TEST(Verify, WantsPairsOfActionsWhole) {
  EXPECT_EQ(found_alone("F0.0 offload0.0 B0.0"),
            "rank 0: load0.0 is missing, the loading of activations of micro-batch 0 in stage 0, "
            "which were offloaded");
  EXPECT_EQ(found_alone("F0.0 load0.0 B0.0"),
            "rank 0: offload0.0 is missing, the offloading of activations of micro-batch 0 in "
            "stage 0, which are loaded");
  EXPECT_EQ(found_alone("F0.0 B0.0 F0.1 B0.1 reduce0.1", 2),
            "rank 0: reduce0.0 is missing, the reduction of gradients of micro-batch 0 in stage "
            "0, as those of other micro-batches are reduced");
  EXPECT_EQ(found_alone("F0.0 B0.0 reduce0.0 reduce0"),
            "rank 0, action 2 (reduce0.0): all micro-batches are reduced by reduce0 (action 3) "
            "already");
  EXPECT_EQ(found(schedule_of({"F0.0 S0.0>1 R0.0<1 B0.0 step0", "R1.0<0 F1.0 B1.0 S1.0>0"})),
            "rank 1: step1 is missing, the optimizer step of stage 1, as other stages have theirs");
}

TEST(Verify, WantsEveryActionAfterWhatItDependsOn) {
  const auto before = [](const std::string& actions, int micro_batches = 1) {
    return found_alone(actions, micro_batches);
  };
  EXPECT_EQ(before("B0.0 F0.0"),
            "rank 0, action 0 (B0.0): comes before F0.0 (action 1), on which it depends");
  EXPECT_THAT(before("I0.0 F0.0 W0.0"), HasSubstr("(I0.0): comes before F0.0 (action 1)"));
  EXPECT_THAT(before("F0.0 W0.0 I0.0"), HasSubstr("(W0.0): comes before I0.0 (action 2)"));
  EXPECT_THAT(before("recompute0.0 F0.0 B0.0"), HasSubstr("(recompute0.0): comes before F0.0"));
  EXPECT_THAT(before("F0.0 B0.0 recompute0.0"), HasSubstr("(B0.0): comes before recompute0.0"));
  EXPECT_THAT(before("F0.0 load0.0 offload0.0 B0.0"),
              HasSubstr("(load0.0): comes before offload0.0"));
  EXPECT_THAT(before("F0.0 offload0.0 B0.0 load0.0"), HasSubstr("(B0.0): comes before load0.0"));
  EXPECT_THAT(before("F0.0 offload0.0 recompute0.0 load0.0 B0.0"),
              HasSubstr("(recompute0.0): comes before load0.0"));
  EXPECT_THAT(before("offload0.0 F0.0 load0.0 B0.0"), HasSubstr("(offload0.0): comes before F0.0"));
  EXPECT_THAT(before("F0.0 I0.0 reduce0.0 W0.0"), HasSubstr("(reduce0.0): comes before W0.0"));
  EXPECT_THAT(before("F0.0 F0.1 B0.0 reduce0 B0.1", 2), HasSubstr("(reduce0): comes before B0.1"));
  EXPECT_THAT(before("F0.0 F0.1 B0.0 step0 B0.1", 2), HasSubstr("(step0): comes before B0.1"));
  EXPECT_THAT(before("F0.0 B0.0 step0 reduce0"), HasSubstr("(step0): comes before reduce0"));
  EXPECT_THAT(before("F0.0 B0.0 step0 reduce0.0"), HasSubstr("(step0): comes before reduce0.0"));
}

TEST(Verify, WantsMessagesBetweenWhatSendsAndWhatNeedsThem) {
  EXPECT_THAT(found(schedule_of({"S0.0>1 F0.0 R0.0<1 B0.0", "R1.0<0 F1.0 B1.0 S1.0>0"})),
              HasSubstr("rank 0, action 0 (S0.0>1): comes before F0.0"));
  EXPECT_THAT(found(schedule_of({"F0.0 S0.0>1 B0.0 R0.0<1", "R1.0<0 F1.0 B1.0 S1.0>0"})),
              HasSubstr("rank 0, action 2 (B0.0): comes before R0.0<1"));
  EXPECT_THAT(found(schedule_of({"F0.0 S0.0>1 R0.0<1 B0.0", "F1.0 R1.0<0 B1.0 S1.0>0"})),
              HasSubstr("rank 1, action 0 (F1.0): comes before R1.0<0"));
  EXPECT_THAT(found(schedule_of({"F0.0 S0.0>1 R0.0<1 B0.0", "R1.0<0 F1.0 S1.0>0 B1.0"})),
              HasSubstr("rank 1, action 2 (S1.0>0): comes before B1.0"));
}

TEST(Verify, FollowsEdgesWithinARank) {
  const VerifyOptions implicit = {.transfers = VerifyOptions::Transfers::kImplicit};
  Schedule schedule = interleaved(1, 1, 2);
  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
  EXPECT_EQ(found(schedule, implicit),
            "rank 0, action 0 (F1.0): comes before F0.0 (action 1), on which it depends");
  schedule = interleaved(1, 1, 2);
  std::swap(schedule.ranks[0][2], schedule.ranks[0][3]);
  EXPECT_EQ(found(schedule, implicit),
            "rank 0, action 2 (B0.0): comes before B1.0 (action 3), on which it depends");
}

TEST(Verify, WantsParametersWholeWhereTheyAreUsed) {
  EXPECT_EQ(found_alone("gather0 F0.0 free0 B0.0"),
            "rank 0, action 3 (B0.0): it needs the parameters: expected gather0 before");
  EXPECT_EQ(found_alone("gather0 F0.0 gather0 B0.0"),
            "rank 0, action 2 (gather0): the parameters are whole already: expected free0 between");
  EXPECT_EQ(found_alone("gather0 F0.0 I0.0 free0 W0.0 free0"),
            "rank 0, action 5 (free0): the parameters are not whole: expected gather0 before");
}

TEST(Verify, NamesTheCircleOfADeadlock) {
  const Schedule schedule = schedule_of({"F0.0 S0.0>1 R0.0<1 B0.0 F0.1 S0.1>1 R0.1<1 B0.1",
                                         "R1.0<0 F1.0 R1.1<0 F1.1 B1.0 S1.0>0 B1.1 S1.1>0"},
                                        2);
  EXPECT_EQ(found(schedule),
            "deadlock: rank 0 waits at action 2 (R0.0<1) for rank 1 to send, rank 1 waits at "
            "action 2 (R1.1<0) for rank 0 to send");
  const auto findings = find_errors(schedule);
  EXPECT_EQ(findings[0].rank, 0);
  EXPECT_EQ(findings[0].position, 2U);
}

TEST(Verify, NamesTheCircleWithoutThoseThatWaitOutsideOfIt) {
  Schedule schedule = one_forward_one_backward(3, 2);
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);  // F1.0 B1.0 F1.1 B1.1
  std::swap(schedule.ranks[2][1], schedule.ranks[2][2]);  // F2.0 F2.1 B2.0 B2.1
  EXPECT_EQ(found(schedule, {.transfers = VerifyOptions::Transfers::kImplicit}),
            "deadlock: rank 1 waits at action 1 (B1.0) for what stages of rank 2 compute, rank 2 "
            "waits at action 1 (F2.1) for what stages of rank 1 compute");
}

TEST(Verify, DependsOnHowManyMessagesMayBeOutstanding) {
  // Both send before they receive.
  const Schedule schedule = schedule_of({"F0.0 S0.0>1 F0.1 S0.1>1 R0.0<1 B0.0 R0.1<1 B0.1",
                                         "R1.0<0 F1.0 B1.0 S1.0>0 R1.1<0 F1.1 B1.1 S1.1>0"},
                                        2);
  EXPECT_EQ(found(schedule), "");
  EXPECT_EQ(found(schedule, {.messages = {.outstanding = 1}}), "");
  EXPECT_EQ(found(schedule, {.messages = {.outstanding = 0}}),
            "deadlock: rank 0 waits at action 3 (S0.1>1) for rank 1 to receive, rank 1 waits at "
            "action 3 (S1.0>0) for rank 0 to receive");
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { find_errors(schedule, {.messages = {.outstanding = -1}}); }),
              HasSubstr("outstanding messages are -1"));
}

TEST(Verify, DependsOnHowMessagesFindTheirReceive) {
  const Schedule schedule = schedule_of({"F0.0 S0.0>1 F0.1 S0.1>1 R0.0<1 R0.1<1 B0.0 B0.1",
                                         "R1.1<0 R1.0<0 F1.0 F1.1 B1.0 S1.0>0 B1.1 S1.1>0"},
                                        2);
  EXPECT_EQ(found(schedule, {.messages = {.matching = Messages::Matching::kByTag}}), "");
  EXPECT_EQ(found(schedule, {.messages = {.matching = Messages::Matching::kInOrder}}),
            "messages in another order: rank 1 waits at action 0 (R1.1<0) while the oldest "
            "message from rank 0 is the one for R1.0<0");
}

TEST(Verify, WantsMessagesListedOrNone) {
  EXPECT_EQ(found(one_forward_one_backward(2, 1)),
            "rank 0: S0.0>1 is missing, the send of the activations of micro-batch 0 from stage 0 "
            "to stage 1");
  EXPECT_EQ(found(two_ranks(), {.transfers = VerifyOptions::Transfers::kImplicit}),
            "there are messages among the actions, expected none");
}

TEST(Verify, HoldsTheMemoryCap) {
  const std::vector<StageBytes> bytes = {{.activations = 10}, {.activations = 30}};
  const Schedule schedule = with_messages(one_forward_one_backward(2, 3));
  EXPECT_EQ(found(schedule, {.bytes = bytes, .memory_cap = {30}}), "");
  EXPECT_EQ(found(schedule, {.bytes = bytes, .memory_cap = {15, 30}}),
            "rank 0, action 2 (F0.1): after it the rank holds 20 bytes for backward, at most 15 "
            "are allowed");
  EXPECT_THAT(
      test::message_of<UsageError>([&] { find_errors(schedule, {.memory_cap = {1, 2, 3}}); }),
      HasSubstr("there are memory caps of 3 ranks, expected 1 or 2"));
}

TEST(Verify, ThrowsTheFirstFindingAndHowManyMoreThereAre) {
  EXPECT_THAT(
      test::message_of<UsageError>([] { verify(schedule_of({"F0.0 B0.0"}, 3)); }),
      HasSubstr("schedule 'test' cannot be executed: rank 0: F0.1 is missing, the forward of "
                "micro-batch 1 in stage 0 (and 3 more)"));
  EXPECT_THAT(test::message_of<UsageError>([] { verify(schedule_of({"B0.0 F0.0"})); }),
              HasSubstr("on which it depends"));
}

TEST(Verify, NamesAboutAHundredMissingActionsAtMost) {
  const auto findings = find_errors(schedule_of({"F0.0"}, 100'000));
  EXPECT_GE(findings.size(), 100U);
  EXPECT_LE(findings.size(), 110U);
}

TEST(Verify, SeesWhetherWeightGradientsComeInTheOrderOfMicroBatches) {
  EXPECT_TRUE(keeps_order_of_gradients(schedule_of({"F0.1 F0.0 I0.1 I0.0 W0.0 W0.1"}, 2)));
  EXPECT_FALSE(keeps_order_of_gradients(schedule_of({"F0.0 F0.1 I0.0 I0.1 W0.1 W0.0"}, 2)));
  EXPECT_FALSE(keeps_order_of_gradients(schedule_of({"F0.0 F0.1 B0.1 B0.0"}, 2)));
}

}  // namespace
}  // namespace trireme::schedule

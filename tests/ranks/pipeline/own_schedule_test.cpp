// SPDX-License-Identifier: Apache-2.0
// Schedules that are no kind: searched for by measured times, written by hand, edited. Every bit as
// one process, or an error before anything runs.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/measured_times.h>
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/search.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/timeline.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using schedule::ActionKind;
using schedule::Schedule;
using test::Arranged;
using test::Network;
using test::NetworkCase;
using ::testing::AllOf;
using ::testing::HasSubstr;

const NetworkCase kTied = test::network_cases()[2];

/// A plan in which the stages are cut by cost, as many as the schedule has.
Plan plan_of(const Schedule& schedule, int data = 1) {
  Plan plan;
  plan.mesh = {{kDataAxis, data}, {kStageAxis, schedule.num_ranks()}};
  plan.schedule = schedule::to_text(schedule);
  plan.micro_batches = schedule.micro_batches;
  return plan;
}

void expect_bits_of_one_process(const Schedule& own, int data = 1) {
  Arranged arranged{.pipe = own.num_ranks(),
                    .data = data,
                    .zero_level = data > 1 ? 3 : 0,
                    .micro_batches = own.micro_batches,
                    .schedule = schedule::to_text(own)};
  // Cut by cost, where it has not a stage for each rank.
  if (own.num_stages() != own.num_ranks()) arranged.chunks = 0;
  test::expect_bits_of(test::alone(kTied, arranged), kTied, arranged);
}

TEST(OwnSchedule, IsSearchedForByMeasuredTimesWithinMemory) {
  Schedule found;
  testing::run_ranks(4, [&](const comm::Group& group) {
    const Network network = kTied.make();
    Plan plan = plan_of(schedule::zero_bubble_h1(2, 4), 2);
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    const auto report = *pipeline.step(network.batch(8, 0), {.report = true}).report;
    const Schedule& measured = pipeline.schedule();
    schedule::SearchOptions options{
        .micro_batches = 4,
        .rank_of_stage = measured.rank_of_stage,
        .edges = measured.edges,
        .times = pipeline::measured_times(measured, {report}),
        .bytes = report.stage_bytes,
        .memory_cap = {*std::ranges::max_element(report.peak_bytes)},
    };
    for (const schedule::StageTimes& stage : options.times.stages) {
      EXPECT_GT(stage.forward, 0);
      EXPECT_GT(stage.backward_input, 0);
      EXPECT_GT(stage.backward_weight, 0);
    }
    // Copies of the pipeline have measured other times.
    plan.schedule = comm::all_gather_text(schedule::to_text(schedule::search(options)), group)[0];
    const Network same = kTied.make();
    TrainingStep searched(*same.module, same.forward, plan, group);
    const auto second = *searched.step(network.batch(8, 1), {.report = true}).report;
    for (const std::int64_t bytes : second.peak_bytes) {
      EXPECT_LE(bytes, options.memory_cap.front());
    }
    if (group.rank() == 0) found = *own_schedule(plan);
  });
  expect_bits_of_one_process(found);
  expect_bits_of_one_process(found, 2);
}

/// Three stages on two ranks, which no generator has: the first rank has the last stage too.
Schedule down_and_back(int micro_batches) {
  Schedule own{.name = "mine", .micro_batches = micro_batches, .rank_of_stage = {0, 1, 0}};
  own.edges = schedule::chain(3);
  own.ranks.resize(2);
  for (int i = 0; i < micro_batches; ++i) {
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      own.ranks[1].push_back({kind, 1, i});
    }
    own.ranks[0].push_back({ActionKind::kForward, 0, i});
    own.ranks[0].push_back({ActionKind::kForward, 2, i});
    own.ranks[0].push_back({ActionKind::kBackward, 2, i});
    own.ranks[0].push_back({ActionKind::kBackward, 0, i});
  }
  return own;
}

TEST(OwnSchedule, MayHaveAnyStagesOnAnyRanksAndItsOwnMessages) {
  expect_bits_of_one_process(schedule::with_messages(schedule::one_forward_one_backward(2, 3)));
  expect_bits_of_one_process(schedule::zero_bubble_v(2, 3));
  expect_bits_of_one_process(down_and_back(2));
}

TEST(OwnSchedule, ComputesAgainWhereItSaysSo) {
  const std::vector<int> first = {0};
  expect_bits_of_one_process(schedule::with_recomputation(schedule::zero_bubble_h1(2, 3), first));
}

// Whole evaluations, and of fewer rows than there are micro-batches, first of all.
TEST(OwnSchedule, EvaluatesAnyNumberOfMicroBatches) {
  testing::run_ranks(2, [&](const comm::Group& group) {
    const Network network = kTied.make();
    const Network same = kTied.make();
    TrainingStep pipeline(*network.module, network.forward, plan_of(down_and_back(4)), group);
    for (const int rows : {3, 8}) {
      const torch::NoGradGuard no_grad;
      const auto batch = network.batch(rows, 0);
      const auto count = std::min(rows, 4);
      std::vector<torch::Tensor> losses;
      const auto parts = test::micro_batches_of(batch, count);
      for (const auto& part : parts) losses.push_back(same.forward(part)[0]);
      const torch::Tensor expected = test::mean_of(losses, test::weights_of(parts));
      EXPECT_TRUE(torch::equal(pipeline.evaluate(batch).loss, expected)) << rows << " rows";
    }
  });
}

std::string error_of(const Plan& plan) {
  std::string message;
  testing::run_ranks(2, [&](const comm::Group& group) {
    const Network network = kTied.make();
    try {
      TrainingStep pipeline(*network.module, network.forward, plan, group);
      static_cast<void>(pipeline.step(network.batch(8, 0)));
    } catch (const Error& error) {
      if (group.rank() == 0) message = error.what();
    }
  });
  return message;
}

TEST(OwnSchedule, IsRefusedBeforeAnythingRunsWhereItIsWrong) {
  Schedule own = schedule::one_forward_one_backward(2, 2);
  Plan plan = plan_of(own);
  plan.micro_batches = 3;
  EXPECT_THAT(error_of(plan), HasSubstr("micro_batches is 3, expected 2"));

  plan = plan_of(own);
  plan.stages = {{"token_embedding", 0}, {"blocks.1", 1}, {"blocks.2", 2}};
  EXPECT_THAT(error_of(plan), HasSubstr("stages is 3 of them, expected the 2 of its schedule"));

  EXPECT_THAT(error_of(plan_of(schedule::with_steps(own))),
              AllOf(HasSubstr("schedule is one with step0"), HasSubstr("does the rest itself")));

  Schedule wrong = own;
  wrong.rank_of_stage = {0, 5};
  EXPECT_THAT(error_of(plan_of(wrong)), HasSubstr("stage 1"));
  wrong = own;
  wrong.ranks[1].push_back({ActionKind::kForward, 9, 0});
  EXPECT_THAT(error_of(plan_of(wrong)), HasSubstr("F9.0"));

  // What a stage adds up would have other bits.
  wrong = schedule::gpipe(2, 2);
  for (auto& actions : wrong.ranks) std::swap(actions[2], actions[3]);
  EXPECT_THAT(error_of(plan_of(wrong)),
              HasSubstr("in another order, expected that of micro-batches"));

  plan = plan_of(own);
  plan.schedule += "rank 2: F9.x\n";
  EXPECT_THAT(error_of(plan), HasSubstr("plan.schedule:"));

  // Rank 0 waits for a gradient before it has sent what that comes from.
  Schedule stuck = schedule::with_messages(own);
  auto& actions = stuck.ranks[0];
  const auto receive = std::ranges::find(actions, ActionKind::kReceive, &schedule::Action::kind);
  std::rotate(actions.begin(), receive, receive + 1);
  EXPECT_THAT(error_of(plan_of(stuck)), AllOf(HasSubstr("rank 0"), HasSubstr("R0.0<1")));
}

TEST(OwnSchedule, TimesAreThoseOfStepsOfTheSchedule) {
  const Schedule own = schedule::with_messages(schedule::one_forward_one_backward(2, 2));
  schedule::Times times;
  times.stages = {{.forward = 1, .backward = 3}, {.forward = 2, .backward = 5}};
  times.communication = {0.5};
  pipeline::StepReport report;
  report.timeline = schedule::simulate(own, times);
  const schedule::Times measured = pipeline::measured_times(own, {report, report});
  EXPECT_EQ(measured.stages[0].forward, 1);
  EXPECT_EQ(measured.stages[1].backward, 5);
  EXPECT_EQ(measured.stages[1].backward_input, 2.5);
  EXPECT_EQ(measured.stages[1].backward_weight, 2.5);
  EXPECT_EQ(schedule::simulate(own, measured).step_time, report.timeline.step_time);
  EXPECT_THAT(test::usage_error([&] { pipeline::measured_times(own, {}); }),
              HasSubstr("of no step"));
  EXPECT_THAT(test::usage_error([&] { pipeline::measured_times(schedule::gpipe(3, 1), {report}); }),
              HasSubstr("not of steps of the schedule 'gpipe'"));
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/check_plan.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string refusal(const Plan& plan, const PlanUse& use) {
  return message_of<UsageError>([&] { check_plan(plan, use); });
}

TEST(CheckPlan, ListsAllReasonsInOneError) {
  Plan plan{.mesh = {{"data", 3}}, .micro_batches = 0, .bucket_bytes = -1};
  plan.zero_level = 7;
  const PlanUse use = {.ranks = 2};
  EXPECT_EQ(plan_problems(plan, use).size(), 4U);
  EXPECT_THAT(refusal(plan, use),
              AllOf(HasSubstr("for 4 reasons"), HasSubstr("multiply to the 2 ranks"),
                    HasSubstr("micro_batches is 0"), HasSubstr("bucket_bytes is -1"),
                    HasSubstr("zero_level is 7")));
}

TEST(CheckPlan, GivesASingleReasonByItself) {
  EXPECT_THAT(
      refusal({.micro_batches = 0}, {}),
      AllOf(HasSubstr("plan: micro_batches is 0, expected 1 or more"), Not(HasSubstr("reasons"))));
}

TEST(CheckPlan, RefusesToOffloadAnOptimizerThatStepsNoShards) {
  Plan plan{.offload_optimizer = true};
  EXPECT_THAT(refusal(plan, {}),
              AllOf(HasSubstr("no ZeRO level above 0"), HasSubstr("zero_level")));
  plan.zero_level_of = {{"head.*", 1}};
  EXPECT_THAT(plan_problems(plan, {}), IsEmpty());
}

TEST(CheckPlan, TellsWhatEachEntryDoesNotDo) {
  Plan plan{.stages = {{"layer1", 0}}};
  plan.recompute = {"*"};
  const PlanUse parallel = {.entry = PlanEntry::kParallelize};
  const PlanUse step = {.entry = PlanEntry::kTrainingStep};
  EXPECT_TRUE(needs_training_step(plan));
  EXPECT_THAT(refusal(plan, parallel),
              AllOf(HasSubstr("modules that begin stages"), HasSubstr("computed again"),
                    HasSubstr("TrainingStep")));
  EXPECT_THAT(plan_problems(plan, step), IsEmpty());
  plan = {.sync_batch_norm = true};
  EXPECT_FALSE(needs_training_step(plan));
  EXPECT_THAT(plan_problems(plan, parallel), IsEmpty());
  EXPECT_THAT(refusal(plan, step), HasSubstr("cannot have sync_batch_norm"));
  plan = {.wire = GradientCompression::kBf16};
  EXPECT_THAT(plan_problems(plan, parallel), IsEmpty());
  EXPECT_THAT(plan_problems(plan, step), IsEmpty());
}

TEST(CheckPlan, TakesDevicesAsRanksAlongPipe) {
  const PlanUse use = {.ranks = 3, .entry = PlanEntry::kTrainingStep, .devices = 2};
  EXPECT_THAT(plan_problems({}, use), IsEmpty());
  EXPECT_THAT(plan_problems({.mesh = {{"data", 3}, {"pipe", 2}}}, use), IsEmpty());
  EXPECT_THAT(refusal({.mesh = {{"data", 3}, {"pipe", 4}}}, use),
              HasSubstr("the 2 devices of each process along pipe"));
  EXPECT_THAT(refusal({.mesh = {{"data", 2}, {"pipe", 2}}}, use),
              HasSubstr("for 3 processes of 2 devices"));
  EXPECT_THAT(refusal({.zero_level = 3}, use), HasSubstr("ZeRO level 3"));
  EXPECT_THAT(refusal({.micro_batches = 0}, use), HasSubstr("by measuring"));
  EXPECT_THAT(
      plan_problems({.micro_batches = 0}, {.entry = PlanEntry::kTrainingStep, .devices = 2}),
      IsEmpty());
}

TEST(CheckPlan, OffloadsActivationsOfAcceleratorsAlone) {
  const Plan plan{.offload_activations = true};
  PlanUse use = {.entry = PlanEntry::kTrainingStep, .devices = 2};
  EXPECT_THAT(refusal(plan, use), HasSubstr("whose memory is the host's"));
  use.on_accelerators = true;
  EXPECT_THAT(plan_problems(plan, use), IsEmpty());
}

TEST(CheckPlan, AddsTheAxesThatAPlanLeavesOut) {
  EXPECT_EQ(with_pipe_and_data({}, {.ranks = 3, .devices = 2}).mesh,
            (std::vector<MeshAxis>{{"pipe", 2}, {"data", 3}}));
  EXPECT_EQ(with_pipe_and_data({.mesh = {{"pipe", 4}}}, {.ranks = 4}).mesh,
            (std::vector<MeshAxis>{{"data", 1}, {"pipe", 4}}));
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan.h>

#include <trireme/base/error.h>
#include <trireme/plan/check_plan.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string error_of(const Plan& plan, int ranks) {
  return message_of<UsageError>([&] { check_plan(plan, {.ranks = ranks}); });
}

Plan on_mesh(std::vector<MeshAxis> mesh) {
  Plan plan;
  plan.mesh = std::move(mesh);
  for (const MeshAxis& axis : plan.mesh) {
    if (axis.name == "tensor") plan.layouts = {{"*", {{"tensor", Replicate{}}}}};
  }
  return plan;
}

TEST(Plan, WithoutAMeshHasAllRanksAlongData) {
  EXPECT_EQ(data_ranks({}, 6), 6);
  EXPECT_FALSE(shares_work({}));
}

TEST(Plan, HasTheRanksAlongDataThatItsMeshSays) {
  EXPECT_EQ(data_ranks(on_mesh({{"data", 2}, {"tensor", 3}}), 6), 2);
  EXPECT_EQ(data_ranks(on_mesh({{"tensor", 6}}), 6), 1);
  EXPECT_TRUE(shares_work(on_mesh({{"data", 2}, {"tensor", 3}})));
  EXPECT_FALSE(shares_work(on_mesh({{"data", 6}})));
}

TEST(Plan, RefusesAMeshOfOtherSizeThanTheRanks) {
  EXPECT_THAT(error_of(on_mesh({{"data", 2}, {"tensor", 2}}), 6),
              AllOf(HasSubstr("mesh is data=2, tensor=2"), HasSubstr("multiply to the 6 ranks"),
                    HasSubstr("start 4 ranks")));
}

TEST(Plan, RefusesAxesWithoutSizeOrName) {
  EXPECT_THAT(error_of(on_mesh({{"data", 0}, {"tensor", 4}}), 2),
              AllOf(HasSubstr("sizes of 1 or more"), HasSubstr("number of ranks, which is 2")));
  EXPECT_THAT(error_of(on_mesh({{"data", 4}}), 1),
              AllOf(HasSubstr("this process is the only rank"), HasSubstr("trireme run -n 4")));
  EXPECT_THAT(error_of(on_mesh({{"", 1}}), 1), HasSubstr("another name for every axis"));
  EXPECT_THAT(error_of(on_mesh({{"a", 1}, {"a", 1}}), 1), HasSubstr("another name"));
}

TEST(Plan, RefusesLayoutsThatItsMeshCannotHave) {
  Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
  plan.layouts = {{"*.weight", {{"model", Shard{0}}}}};
  EXPECT_THAT(error_of(plan, 4), AllOf(HasSubstr("*.weight -> Shard(0) on model"),
                                       HasSubstr("an axis of the mesh data=2, tensor=2")));
  plan.layouts = {{"*.weight", {{"data", Shard{0}}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("zero_level"));
  plan.layouts = {{"*.weight", {{"tensor", Partial{}}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("Shard or Replicate"));
  plan = {};
  plan.layouts = column_parallel("*");
  EXPECT_THAT(error_of(plan, 4), HasSubstr("a mesh that has the axis tensor"));
}

TEST(Plan, RefusesLayoutsOfOperatorsThatItsMeshCannotHave) {
  Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
  plan.operators = {{.pattern = "*.mlp", .result = {"model", Shard{0}}}};
  EXPECT_THAT(error_of(plan, 4), AllOf(HasSubstr("operators is *.mlp gives Shard(0) on model"),
                                       HasSubstr("an axis of the mesh data=2, tensor=2")));
  plan.operators = {{.pattern = "*.mlp", .result = {"data", Shard{0}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("operators is *.mlp gives Shard(0) on data"));
  plan.operators = {{.pattern = "*.mlp", .result = {"tensor", Partial{}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("Shard or Replicate"));
  plan.operators = {{.pattern = "*.mlp", .result = {{"tensor", Shard{0}}, {"tensor", Shard{1}}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("not tensor twice"));
  plan.operators = {{.pattern = "*.mlp"}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("the parts of its inputs or the placements"));
  plan = {};
  plan.operators = {{.pattern = "*.mlp", .parts = {{2, 1}}}};
  EXPECT_THAT(error_of(plan, 4), HasSubstr("a mesh with other axes than data and pipe"));
}

// Ranks along `dta` used to train each for itself.
TEST(Plan, RefusesAnAxisThatNoLayoutNames) {
  EXPECT_THAT(error_of({.mesh = {{"dta", 2}}}, 2),
              AllOf(HasSubstr("mesh is dta=2"), HasSubstr("no layout names its axis dta"),
                    HasSubstr("did you mean 'data'?")));
  EXPECT_THAT(error_of({.mesh = {{"data", 2}, {"pip", 1}}}, 2), HasSubstr("did you mean 'pipe'?"));
  EXPECT_THAT(error_of({.mesh = {{"data", 2}, {"tensor", 2}}}, 4),
              AllOf(HasSubstr("no layout names its axis tensor"),
                    HasSubstr(R"({"*", {{"tensor", Replicate{}}}})")));
  Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
  check_plan(plan, {.ranks = 4});
  plan = {.mesh = {{"data", 2}, {"tensor", 1}}};
  check_plan(plan, {.ranks = 2});
  plan = {.mesh = {{"data", 1}, {"tensor", 2}}, .layouts = {{"*", {{"tensr", Shard{0}}}}}};
  EXPECT_THAT(error_of(plan, 2), HasSubstr("did you mean 'tensor'?"));
}

TEST(Plan, AnAxisContextNeedsNoLayouts) {
  const Plan plan = {.mesh = {{"data", 2}, {"context", 2}}};
  EXPECT_THAT(plan_problems(plan, {.ranks = 4, .entry = PlanEntry::kParallelize}),
              ::testing::IsEmpty());
  EXPECT_THAT(plan_problems(plan, {.ranks = 4, .entry = PlanEntry::kTrainingStep}),
              ::testing::IsEmpty());
  EXPECT_TRUE(shares_work(plan));
  EXPECT_THAT(to_string(plan), HasSubstr("sequence attention   cheapest\n"));
  EXPECT_THAT(to_string(Plan{.sequence_attention = SequenceAttention::kHeads}),
              HasSubstr("sequence attention   heads\n"));
}

TEST(Plan, AnAxisExpertNeedsLayoutsOfExperts) {
  Plan plan = {.mesh = {{"data", 2}, {"expert", 2}}};
  EXPECT_THAT(error_of(plan, 4),
              AllOf(HasSubstr("mesh is data=2, expert=2, and no layout names its axis expert"),
                    HasSubstr("trireme::expert_layouts(module)")));
  EXPECT_THAT(error_of({.mesh = {{"experts", 2}}}, 2), HasSubstr("did you mean 'expert'?"));
  plan.sync_batch_norm = true;
  EXPECT_THAT(error_of(plan, 4), AllOf(HasSubstr("cannot be carried out, for 2 reasons"),
                                       HasSubstr("axis expert"), HasSubstr("sync_batch_norm")));
  plan = {.mesh = {{"data", 2}, {"expert", 2}},
          .layouts = {{"*.mixture.input_weight", {"expert", Shard{0}}}}};
  for (const PlanEntry entry : {PlanEntry::kParallelize, PlanEntry::kTrainingStep}) {
    EXPECT_THAT(plan_problems(plan, {.ranks = 4, .entry = entry}), ::testing::IsEmpty());
  }
  EXPECT_TRUE(shares_work(plan));
}

TEST(Plan, CutsStateAmongRanksAlongData) {
  Plan plan = on_mesh({{"data", 4}, {"tensor", 2}});
  plan.shard_ranks = 8;
  EXPECT_THAT(error_of(plan, 8), HasSubstr("divisor of the 4 ranks along data"));
}

TEST(Plan, KnowsRanksAlongPipeFromThoseThatShareWork) {
  const Plan plan = on_mesh({{"pipe", 2}, {"data", 3}});
  EXPECT_EQ(stage_ranks(plan), 2);
  EXPECT_EQ(data_ranks(plan, 6), 3);
  EXPECT_FALSE(shares_work(plan));
  EXPECT_TRUE(shares_work(on_mesh({{"pipe", 2}, {"tensor", 3}})));
}

TEST(Plan, RefusesStagesOutOfOrderAndMoreThanRanksHave) {
  Plan plan = on_mesh({{"pipe", 2}});
  plan.stages = {{"layer1", 0}, {"layer3", 2}};
  EXPECT_THAT(error_of(plan, 2), AllOf(HasSubstr("stages: layer3 is 2, expected 0 or 1"),
                                       HasSubstr("none is left out")));
  plan.stages = {{"layer1", 1}, {"layer3", 0}};
  EXPECT_THAT(error_of(plan, 2), HasSubstr("stages: layer3 is 0, expected 1 or 2"));
  plan.stages = {{"layer1", 1}, {"layer3", 2}};
  EXPECT_THAT(error_of(plan, 2), HasSubstr("as many for each of the 2 ranks along pipe"));
  plan.stages = {{"layer1", 1}};
  plan.chunks = 2;
  EXPECT_THAT(error_of(plan, 2), HasSubstr("chunks is 2, expected 0, or the 1 stages"));
  plan.chunks = 0;
  plan.schedule = "2f2b";
  EXPECT_THAT(error_of(plan, 2), AllOf(HasSubstr("schedule is '2f2b', expected one of gpipe, 1f1b"),
                                       HasSubstr("read_schedule")));
  plan.schedule = "zbv";
  EXPECT_THAT(error_of(plan, 2), HasSubstr("did you mean 'zb-v'?"));
  plan.schedule = "1f1b";
  EXPECT_NO_THROW(check_plan(plan, {.ranks = 2}));
  plan.layouts = {{"*.weight", {{"pipe", Shard{0}}}}};
  EXPECT_THAT(error_of(plan, 2), HasSubstr("which rank has which module says stages"));
}

TEST(Plan, RecomputesByNameOrByMemory) {
  Plan plan;
  plan.recompute = {"blocks.*", "aten::gelu"};
  EXPECT_NO_THROW(check_plan(plan, {.ranks = 1}));
  EXPECT_THAT(to_string(plan), HasSubstr("recompute            blocks.*, aten::gelu\n"));
  plan.activation_bytes = 4096;
  EXPECT_THAT(error_of(plan, 1), HasSubstr("activation_bytes is 4096, expected 0 where recompute"));
  plan.recompute = {};
  EXPECT_NO_THROW(check_plan(plan, {.ranks = 1}));
  EXPECT_THAT(to_string(plan), AllOf(HasSubstr("recompute            nothing\n"),
                                     HasSubstr("activation bytes     4096\n")));
  plan.activation_bytes = -1;
  EXPECT_THAT(error_of(plan, 1), HasSubstr("activation_bytes is -1, expected 0 or more"));
  plan = {};
  plan.recompute = {""};
  EXPECT_THAT(error_of(plan, 1), HasSubstr("an empty pattern"));
}

TEST(Plan, SaysWhetherActivationsAreOffloaded) {
  Plan plan;
  EXPECT_THAT(to_string(plan), HasSubstr("offload activations  no\n"));
  plan.offload_activations = true;
  plan.recompute = {"blocks.*"};  // together, unlike recompute and activation_bytes
  EXPECT_NO_THROW(check_plan(plan, {.ranks = 1}));
  EXPECT_THAT(to_string(plan), HasSubstr("offload activations  yes\n"));
}

TEST(Plan, PrintsMeshAndLayouts) {
  Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
  plan.layouts = column_parallel("*.qkv");
  EXPECT_THAT(to_string(plan),
              AllOf(HasSubstr("mesh                 data=2, tensor=2\n"),
                    HasSubstr("layouts              *.qkv.weight -> Shard(0) on tensor\n"),
                    HasSubstr("                     *.qkv.bias -> Shard(0) on tensor if there\n"),
                    HasSubstr("operators            cheapest\n")));
  plan.operators = {{.pattern = "*.qkv", .parts = {{2, 1}}},
                    {.pattern = "aten::gelu", .result = {"tensor", Shard{0}}}};
  EXPECT_THAT(to_string(plan),
              HasSubstr("operators            *.qkv takes {{2, 1}}\n"
                        "                     aten::gelu gives Shard(0) on tensor\n"));
}

class LayoutText : public testing::TestWithParam<ParameterLayout> {};

TEST_P(LayoutText, ReadsBackAsTheSameLayout) {
  const auto read = parse_layout(to_string(GetParam()));
  ASSERT_TRUE(read.has_value()) << to_string(GetParam());
  EXPECT_EQ(*read, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutText,
    testing::Values(ParameterLayout{"*.qkv.weight", {{"tensor", Shard{0}}}},
                    ParameterLayout{"a?[bc].*", {{"x", Shard{1}}, {"y", Replicate{}}}},
                    ParameterLayout{.pattern = "*.bias",
                                    .placements = {{"tensor", Shard{0}}},
                                    .is_optional = true},
                    ParameterLayout{"both", {{"x", Shard{0, 1}}, {"y", Shard{0, 0}}}},
                    ParameterLayout{"whole", {}}));

TEST(ParameterLayouts, OfOnePlacementNeedNoBracesOfTheirOwn) {
  const ParameterLayouts layouts = {{"*.weight", {"tensor", Shard{0}}},
                                    {"*.bias", {{"tensor", Shard{0}}, {"data", Replicate{}}}}};
  EXPECT_EQ(layouts[0], (ParameterLayout{"*.weight", {{"tensor", Shard{0}}}}));
  EXPECT_EQ(layouts[1].placements.size(), 2U);
}

TEST(LayoutText, IsRefusedWhereItIsNone) {
  for (const char* text :
       {"", "weight", "weight ->", "weight -> Shard on tensor", "weight -> Shard(0)",
        "weight -> Shard(0) on", "weight -> Partial(sum) on tensor",
        "weight -> Shard(0) on tensor and", "weight -> Shard(0) on tensor maybe",
        "weight -> Shard(-1) on tensor", "two words -> Shard(0) on tensor"}) {
    EXPECT_FALSE(parse_layout(text).has_value()) << text;
  }
  // std::regex went one level deeper with each character, and the stack ended.
  EXPECT_FALSE(parse_layout(std::string(1'000'000, 'x') + " -> Replicate").has_value());
  EXPECT_FALSE(parse_layout("x -> " + std::string(1'000'000, 'y')).has_value());
}

TEST(Plan, PrintsItsSettings) {
  EXPECT_THAT(to_string(Plan{}),
              AllOf(HasSubstr("micro-batches        1\n"), HasSubstr("gathered buckets     2\n")));
  EXPECT_EQ(Plan{}, Plan{});
  EXPECT_THAT((Plan{.micro_batches = 2}), Not(Plan{}));
}

}  // namespace
}  // namespace trireme

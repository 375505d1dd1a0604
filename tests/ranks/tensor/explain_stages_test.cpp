// SPDX-License-Identifier: Apache-2.0
// What explain says of the stages of a pipeline, and of modules on accelerators.
#include <models/gpt.h>
#include <trireme/graph/graph.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/predict/explain.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/fake_device/device.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/explained_mlp.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme {
namespace {

using predict::explain;
using predict::ExplainedCommunication;
using predict::ExplainedOperator;
using predict::Explanation;
using test::Mlp;
using test::plan_of;
using test::usage_error;
using torch::Tensor;

// -- stages ------------------------------------------------------------------------------------

std::vector<std::string> names_in(const Explanation& explanation, int stage, bool is_backward) {
  std::vector<std::string> names;
  for (const ExplainedOperator& op : explanation.operators) {
    if (op.stage == stage && op.is_backward == is_backward) names.push_back(op.call.name);
  }
  return names;
}

TEST(Explain, ShowsTheStagesOfAPipeline) {
  Mlp mlp;
  Plan plan = plan_of({{"pipe", 2}, {"data", 2}}, {});
  plan.micro_batches = 4;
  plan.stages = {{"up", 0}, {"down", 1}};
  const Explanation explanation = explain(mlp, plan, torch::ones({8, 16}));

  ASSERT_EQ(explanation.stages.size(), 2U);
  EXPECT_EQ(explanation.stages[0].rank, 0);
  EXPECT_EQ(explanation.stages[0].first_module, "up");
  EXPECT_EQ(explanation.stages[0].bytes, 4 * (16 * 64 + 64));
  ASSERT_EQ(explanation.stages[0].messages.size(), 1U);
  EXPECT_EQ(explanation.stages[0].messages[0].to, 1);
  EXPECT_EQ(explanation.stages[0].messages[0].bytes, 4 * 8 * 64);
  EXPECT_GT(explanation.stages[0].messages[0].seconds, 0);
  EXPECT_EQ(explanation.stages[1].rank, 1);
  EXPECT_EQ(explanation.stages[1].first_module, "down");
  EXPECT_EQ(explanation.stages[1].bytes, 4 * (16 * 64 + 16));
  EXPECT_TRUE(explanation.stages[1].messages.empty());
  EXPECT_EQ(explanation.bytes, 4 * (2 * 16 * 64 + 64 + 16));
  EXPECT_EQ(explanation.bytes_of_rank, 4 * (16 * 64 + 64));

  EXPECT_THAT(names_in(explanation, 0, false), ::testing::Contains("aten::relu"));
  EXPECT_THAT(names_in(explanation, 1, false), ::testing::Not(::testing::Contains("aten::relu")));
  EXPECT_FALSE(names_in(explanation, 0, true).empty());
  EXPECT_FALSE(names_in(explanation, 1, true).empty());

  // Each stage exchanges its own gradients, in a bucket of its own.
  ASSERT_EQ(explanation.gradients.size(), 2U);
  for (int stage = 0; stage < 2; ++stage) {
    const ExplainedCommunication& line = explanation.gradients[static_cast<std::size_t>(stage)];
    EXPECT_EQ(line.stage, stage);
    EXPECT_EQ(line.axis, "data");
    EXPECT_EQ(line.bytes, explanation.stages[static_cast<std::size_t>(stage)].bytes);
  }
  EXPECT_THAT(
      to_string(explanation),
      ::testing::AllOf(::testing::HasSubstr("stage 0 on rank 0 along pipe: up"),
                       ::testing::HasSubstr("stage 1 on rank 1 along pipe: down"),
                       ::testing::HasSubstr("sends 2.0 KiB to stage 1 for each micro-batch"),
                       ::testing::HasSubstr("\n stage 1\n")));
}

// What is explained is what the stages of a run do: the same modules begin them.
TEST(Explain, CutsAsATrainingStepDoes) {
  const auto make = [] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 64, .sequence = 8, .hidden = 16, .layers = 4, .heads = 4, .tied = false});
  };
  const auto loss = [](models::GPT& model, const std::vector<Tensor>& batch) {
    return torch::cross_entropy_loss(model(batch[0]).flatten(0, 1), batch[0].flatten());
  };
  Plan plan = plan_of({{"pipe", 2}}, {});
  plan.micro_batches = 2;
  models::GPT explained = make();
  const std::vector<Tensor> batch = {torch::arange(2 * 8).reshape({2, 8})};
  const Explanation explanation = explain(*explained, plan, [&] { return loss(explained, batch); });
  testing::run_ranks(2, [&](const comm::Group& group) {
    models::GPT model = make();
    TrainingStep step(
        *model, [&](const auto& given) { return std::vector<Tensor>{loss(model, given)}; }, plan,
        group);
    step.step({torch::arange(4 * 8).reshape({4, 8})});
    const graph::Graph& graph = step.graph();
    const auto stage = static_cast<std::size_t>(group.rank());
    std::map<graph::ValueId, std::int64_t> parameters;
    for (int node = step.boundaries()[stage]; node < step.boundaries()[stage + 1]; ++node) {
      for (const graph::ValueId id : graph.inputs_of(node)) {
        const graph::Value& memory = graph.value(graph.value(id).memory);
        if (memory.kind == graph::ValueKind::kParameter) parameters[memory.object] = memory.bytes();
      }
    }
    std::int64_t bytes = 0;
    for (const auto& [parameter, size] : parameters) bytes += size;
    EXPECT_EQ(static_cast<double>(bytes), explanation.stages[stage].bytes);
  });
}

// -- devices -----------------------------------------------------------------------------------

TEST(Explain, TakesAModuleOnAnAccelerator) {
  Mlp here;
  Mlp there;
  there->to(testing::fake::device(0));
  const Plan plan =
      plan_of({{"data", 2}, {"tensor", 2}}, join({column_parallel("up"), row_parallel("down")}));
  const std::string expected = to_string(explain(here, plan, torch::ones({8, 16})));
  EXPECT_EQ(to_string(explain(there, plan, torch::ones({8, 16}))), expected);
  EXPECT_EQ(to_string(explain(there, plan, torch::ones({8, 16}).to(testing::fake::device(0)))),
            expected);
  for (const Tensor& parameter : there->parameters()) {
    EXPECT_EQ(parameter.device(), testing::fake::device(0));
  }
  EXPECT_TRUE(torch::isfinite(there(torch::ones({8, 16}).to(testing::fake::device(0))))
                  .all()
                  .cpu()
                  .item<bool>());
}

// Turns autocast on for the fake device, for which trireme::Autocast does not exist.
class AutocastOfFake {
 public:
  AutocastOfFake() {
    at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
  }
  ~AutocastOfFake() { at::autocast::set_autocast_enabled(at::kPrivateUse1, false); }
  AutocastOfFake(const AutocastOfFake&) = delete;
  AutocastOfFake& operator=(const AutocastOfFake&) = delete;
};

TEST(Explain, FollowsTheAutocastOfAnAccelerator) {
  Mlp mlp;
  mlp->to(testing::fake::device(0));
  const Plan plan = plan_of({{"tensor", 1}}, {});
  const auto dtypes_of_products = [](const Explanation& explanation) {
    std::vector<at::ScalarType> dtypes;
    for (const ExplainedOperator& op : explanation.operators) {
      if (!op.is_backward && op.call.flops > 0 && op.call.name.find("mm") != std::string::npos) {
        dtypes.push_back(op.call.inputs.back().dtype);
      }
    }
    return dtypes;
  };
  EXPECT_THAT(dtypes_of_products(explain(mlp, plan, torch::ones({8, 16}))),
              ::testing::Each(at::kFloat));
  {
    const AutocastOfFake autocast;
    EXPECT_THAT(dtypes_of_products(explain(mlp, plan, torch::ones({8, 16}))),
                ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(at::kBFloat16)));
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_THAT(usage_error([&] {
                explain(*mlp, plan, [&] {
                  const AutocastOfFake autocast;
                  return mlp(torch::ones({8, 16}));
                });
              }),
              ::testing::HasSubstr("forward turns on autocast for"));
}

}  // namespace
}  // namespace trireme

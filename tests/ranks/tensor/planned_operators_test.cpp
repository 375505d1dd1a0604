// SPDX-License-Identifier: Apache-2.0
// Layouts of operators in a plan: forward follows them, everything else stays as it is, and the
// numbers are those of one process within rounding.
#include <trireme/base/error.h>
#include <trireme/optim/autocast.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/tensor_parallel/operator_layouts.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/predict/explain.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/explained_mlp.h>
#include <tests/ranks/tensor/sent_collectives.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/small_transformers.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using tensor::DryRun;
using tensor::DryRunCall;
using test::usage_error;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::run_ranks;
using torch::Tensor;

constexpr int kSteps = 3;

Tensor tokens() { return (torch::arange(4 * 8) * 7 + 3).remainder(50).reshape({4, 8}); }

models::GPT make_gpt(bool is_tied = false) {
  torch::manual_seed(1);
  models::GPTOptions options = test::small_gpt();
  options.tied = is_tied;
  models::GPT net(options);
  net->to(torch::kDouble);
  return net;
}

Tensor loss_of(models::GPT& net) {
  return torch::cross_entropy_loss(net(tokens()).flatten(0, 1), tokens().roll(1, 1).flatten());
}

Plan plan_on(std::vector<MeshAxis> mesh, OperatorLayouts operators) {
  Plan plan;
  plan.mesh = std::move(mesh);
  plan.layouts = transformer_layouts(*make_gpt());
  plan.operators = std::move(operators);
  return plan;
}

// Each rank's network, made before ranks begin, since the seed is the process's.
std::vector<models::GPT> gpts(int ranks) {
  std::vector<models::GPT> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(make_gpt());
  return all;
}

std::vector<double> train(models::GPT& net) {
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = loss_of(net);
    losses.push_back(full(loss).item<double>());
    loss.backward();
    optimizer.step();
  }
  return losses;
}

// The layout of the first result of each call of an operator in forward.
std::vector<std::string> results_of(const std::vector<DryRunCall>& calls, const std::string& name) {
  std::vector<std::string> layouts;
  for (const DryRunCall& call : calls) {
    if (call.node.empty() && call.name.starts_with(name)) {
      layouts.push_back(call.outputs.front().layout.to_string());
    }
  }
  return layouts;
}

std::vector<DryRunCall> calls_of(const predict::Explanation& explanation) {
  std::vector<DryRunCall> calls;
  for (const predict::ExplainedOperator& op : explanation.operators) calls.push_back(op.call);
  return calls;
}

std::vector<DryRunCall> explained(const Plan& plan, models::GPT net = make_gpt()) {
  return calls_of(predict::explain(*net, plan, [&] { return loss_of(net); }));
}

const OperatorLayouts kSequenceParallel = {
    {.pattern = "token_embedding", .result = {"tensor", Shard{1}}},
    {.pattern = "*.attention.output", .result = {"tensor", Shard{1}}},
    {.pattern = "*.mlp_output", .result = {"tensor", Shard{1}}}};

class PlannedOperators : public ::testing::TestWithParam<OperatorLayouts> {};

TEST_P(PlannedOperators, TrainLikeOneProcess) {
  models::GPT plain = make_gpt();
  const std::vector<double> expected = train(plain);
  for (const std::vector<MeshAxis>& mesh : std::vector<std::vector<MeshAxis>>{
           {{"tensor", 2}}, {{"tensor", 4}}, {{"data", 2}, {"tensor", 2}}}) {
    Plan plan = plan_on(mesh, GetParam());
    plan.zero_level = mesh.size() > 1 ? 3 : 0;
    const int ranks = static_cast<int>(mesh.size() > 1 ? 4 : mesh[0].size);
    std::vector<models::GPT> nets = gpts(ranks);
    run_ranks(ranks, [&](const comm::Group& group) {
      models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
      Parallelized parallelized = parallelize(*net, plan, group);
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
      parallelized.shard(optimizer);
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const Tensor loss = loss_of(net);  // all rows on both ranks along data
        EXPECT_NEAR(full(loss).item<double>(), expected[static_cast<std::size_t>(step)], 1e-11);
        loss.backward();
        optimizer.step();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PlannedOperators,
    ::testing::Values(
        kSequenceParallel,
        OperatorLayouts{{.pattern = "*.attention.output", .result = {"tensor", Replicate{}}},
                        {.pattern = "*.norm?", .result = {"tensor", Shard{2}}}},
        OperatorLayouts{{.pattern = "aten::gelu", .result = {"tensor", Shard{0}}},
                        {.pattern = "aten::native_layer_norm", .result = {"tensor", Shard{1}}}}));

TEST(PlannedOperators, SendWhatIsExplained) {
  testing::engine_of_ranks = "gloo";
  const Plan plan = plan_on({{"tensor", 2}}, kSequenceParallel);
  std::vector<std::string> expected;
  for (const DryRunCall& call : explained(plan)) {
    if (call.node != "torch::autograd::AccumulateGrad") expected.push_back(test::line_of(call));
  }
  std::vector<models::GPT> nets = gpts(2);
  run_ranks(2, [&](const comm::Group& group) {
    models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
    const Parallelized parallelized = parallelize(*net, plan, group);
    const DeviceMesh& mesh = parallelized.mesh();
    test::SentCollectives sent(mesh);
    const DryRun beside(
        DryRun::Mode::kBeside, [&](const DryRunCall& call, c10::ArrayRef<c10::IValue> results) {
          EXPECT_EQ(sent.take(), test::predicted(call, mesh)) << test::line_of(call);
          if (results.size() != 1 || !results[0].isTensor()) return;
          EXPECT_EQ(layout_of(results[0].toTensor()).to_string(),
                    call.outputs.front().layout.to_string());
        });
    loss_of(net);
    std::vector<std::string> lines;
    for (const DryRunCall& call : beside.calls()) lines.push_back(test::line_of(call));
    if (group.rank() == 0) {
      expected.resize(lines.size());  // without backward
      EXPECT_EQ(lines, expected);
    }
  });
}

TEST(PlannedOperators, GiveTheResultsThatThePlanSays) {
  const std::vector<DryRunCall> calls = explained(plan_on({{"tensor", 2}}, kSequenceParallel));
  EXPECT_EQ(results_of(calls, "aten::embedding").front(), "[tensor: Shard(1)]");
  // The products onto 16 features are those of the two modules, 2 in each of 2 blocks.
  int along_sequence = 0;
  for (const DryRunCall& call : calls) {
    const bool is_product = call.name == "aten::matmul" || call.name == "aten::linear";
    if (!call.node.empty() || !is_product || call.outputs.front().sizes.back() != 16) continue;
    EXPECT_EQ(call.outputs.front().layout.to_string(), "[tensor: Shard(1)]");
    ++along_sequence;
  }
  EXPECT_EQ(along_sequence, 4);
  for (const std::string& layout : results_of(calls, "aten::native_layer_norm")) {
    EXPECT_EQ(layout, "[tensor: Shard(1)]");
  }
}

// The parts of an operator's inputs, as MindSpore's `shard` takes them.
TEST(PlannedOperators, TakeThePartsThatThePlanSays) {
  const auto gelus = [](const Plan& plan) { return results_of(explained(plan), "aten::gelu"); };
  const std::string by_rows = "[tensor: Shard(0)]";
  EXPECT_THAT(gelus(plan_on({{"tensor", 2}}, {})), ::testing::Not(Contains(by_rows)));
  EXPECT_THAT(gelus(plan_on({{"tensor", 2}}, {{.pattern = "aten::gelu", .parts = {{2, 1, 1}}}})),
              ::testing::Each(by_rows));
}

TEST(PlannedOperators, TakePartsAndGiveResults) {
  const std::vector<DryRunCall> calls = explained(plan_on(
      {{"tensor", 2}},
      {{.pattern = "aten::gelu", .parts = {{2, 1, 1}}, .result = {"tensor", Replicate{}}}}));
  int num_gelus = 0;
  for (const DryRunCall& call : calls) {
    if (!call.node.empty() || call.name != "aten::gelu") continue;
    ++num_gelus;
    EXPECT_EQ(call.inputs.front().layout.to_string(), "[tensor: Shard(0)]");
    EXPECT_EQ(call.outputs.front().given.to_string(), "[tensor: Shard(0)]");
    EXPECT_EQ(call.outputs.front().layout.to_string(), "[tensor: Replicate]");
    EXPECT_EQ(call.outputs.front().exchanges.size(), 1);
  }
  EXPECT_EQ(num_gelus, 2);
}

// The head of a tied GPT uses the weight of the embedding, but is no look-up.
TEST(PlannedOperators, LeaveTheProductWithATiedWeight) {
  Plan plan = plan_on({{"tensor", 2}}, {{.pattern = "token_embedding", .parts = {{1, 1}, {1, 2}}}});
  plan.layouts = transformer_layouts(*make_gpt(/*is_tied=*/true));
  const std::vector<DryRunCall> calls = explained(plan, make_gpt(/*is_tied=*/true));
  EXPECT_EQ(results_of(calls, "aten::embedding").front(), "[tensor: Shard(1)]");
}

// The cast of a weight is a weight, too.
TEST(PlannedOperators, HoldUnderAutocast) {
  torch::manual_seed(1);
  models::GPT net(test::small_gpt());
  const Plan plan = plan_on({{"tensor", 2}}, kSequenceParallel);
  std::vector<DryRunCall> calls;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    calls = explained(plan, net);
  }
  int num_products = 0;
  for (const DryRunCall& call : calls) {
    const bool is_product = call.name == "aten::matmul" || call.name == "aten::linear";
    if (!call.node.empty() || !is_product || call.outputs.front().sizes.back() != 16) continue;
    EXPECT_EQ(call.outputs.front().dtype, at::kBFloat16);
    EXPECT_EQ(call.outputs.front().layout.to_string(), "[tensor: Shard(1)]");
    ++num_products;
  }
  EXPECT_EQ(num_products, 4);
}

// Optimizers and norms of gradients call operators of the same names.
TEST(PlannedOperators, LeaveOptimizersAlone) {
  const auto train_by_sgd = [](models::GPT& net) {
    torch::optim::SGD optimizer(
        net->parameters(),
        torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1));
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(net);
      losses.push_back(full(loss).item<double>());
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
    }
    return losses;
  };
  models::GPT plain = make_gpt();
  const std::vector<double> expected = train_by_sgd(plain);
  const Plan plan =
      plan_on({{"tensor", 2}}, {{.pattern = "aten::add.Tensor", .result = {"tensor", Shard{2}}},
                                {.pattern = "aten::*", .result = {"tensor", Replicate{}}}});
  std::vector<models::GPT> nets = gpts(2);
  run_ranks(2, [&](const comm::Group& group) {
    models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
    const Parallelized parallelized = parallelize(*net, plan, group);
    const std::vector<double> losses = train_by_sgd(net);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(losses[static_cast<std::size_t>(step)], expected[static_cast<std::size_t>(step)],
                  1e-11);
    }
  });
}

// Backward that is differentiated is backward: its products have other operands.
TEST(PlannedOperators, LeaveBackwardAloneThatIsDifferentiated) {
  const auto penalty_of = [](test::Mlp& net) {
    const Tensor x = torch::linspace(-1, 1, 64, torch::kDouble).reshape({4, 16});
    const auto gradients =
        torch::autograd::grad({net(x).square().sum()}, net->parameters(), /*grad_outputs=*/{},
                              /*retain_graph=*/true, /*create_graph=*/true);
    Tensor penalty = torch::zeros({}, torch::kDouble);
    for (const Tensor& gradient : gradients) penalty = penalty + gradient.square().sum();
    penalty.backward();
    return full(penalty.detach()).item<double>();
  };
  const auto make = [] {
    torch::manual_seed(1);
    test::Mlp net;
    net->to(torch::kDouble);
    return net;
  };
  test::Mlp plain = make();
  const double expected = penalty_of(plain);
  // Three tuples, for the addmm of a layer on a matrix. Its backward has products of two tensors.
  const OperatorLayouts operators = {{.pattern = "up", .parts = {{2}, {1, 1}, {1, 2}}},
                                     {.pattern = "down", .parts = {{1}, {1, 2}, {2, 1}}}};
  std::vector<test::Mlp> nets = {make(), make()};
  run_ranks(2, [&](const comm::Group& group) {
    test::Mlp& net = nets[static_cast<std::size_t>(group.rank())];
    // Without parallelize, whose hooks refuse a backward within which another one runs.
    const DeviceMesh mesh(group, {{"tensor", 2}});
    detail::set_operator_layouts(net.get(), mesh, operators);
    distribute_module(*net, mesh, join({column_parallel("up"), row_parallel("down")}));
    EXPECT_NEAR(penalty_of(net), expected, 1e-11 * expected);
  });
}

// With the plan, the sum after each attention is an all-reduce of what a rank has as rows.
class PlannedAllReduces {
 public:
  PlannedAllReduces(const DeviceMesh& mesh, std::int64_t rows)
      : sent_(mesh),
        line_(test::as_text(Collective::kAllReduce, "tensor",
                            static_cast<double>(rows * 8 * 16 * 8))) {}
  std::int64_t count() { return std::ranges::count(sent_.take(), line_); }

 private:
  test::SentCollectives sent_;
  std::string line_;
};

const OperatorLayouts kWholeAttention = {
    {.pattern = "*.attention.output", .result = {"tensor", Replicate{}}}};

TEST(PlannedOperators, HoldForShardedParameters) {
  testing::engine_of_ranks = "gloo";
  for (const bool is_planned : {false, true}) {
    Plan plan =
        plan_on({{"data", 2}, {"tensor", 2}}, is_planned ? kWholeAttention : OperatorLayouts());
    plan.zero_level = 3;
    std::vector<models::GPT> nets = gpts(4);
    run_ranks(4, [&](const comm::Group& group) {
      models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
      Parallelized parallelized = parallelize(*net, plan, group);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      parallelized.shard(optimizer);
      PlannedAllReduces all_reduces(parallelized.mesh(), /*rows=*/4);
      const Tensor loss = loss_of(net);
      EXPECT_EQ(all_reduces.count(), is_planned ? 2 : 0);
      loss.backward();
    });
  }
}

TEST(PlannedOperators, HoldInStagesAndWhenRecomputed) {
  testing::engine_of_ranks = "gloo";
  for (const bool recomputes : {false, true}) {
    Plan plan = plan_on({{"pipe", 2}, {"tensor", 2}}, kWholeAttention);
    plan.stages = {{"token_embedding", 0}, {"blocks.1", 1}};
    plan.micro_batches = 2;
    if (recomputes) plan.recompute = {"blocks.?"};
    std::vector<models::GPT> nets = gpts(4);
    run_ranks(4, [&](const comm::Group& group) {
      models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
      TrainingStep training(
          *net,
          [net](const auto& in) mutable -> std::vector<Tensor> {
            return {torch::cross_entropy_loss(net(in[0]).flatten(0, 1), in[1].flatten())};
          },
          plan, group);
      training.step({tokens(), tokens().roll(1, 1)});  // assigns stages
      PlannedAllReduces all_reduces(training.parallelized().mesh(), /*rows=*/2);
      training.step({tokens(), tokens().roll(1, 1)});
      // One block for each stage, in each of two micro-batches.
      EXPECT_EQ(all_reduces.count(), recomputes ? 4 : 2);
    });
  }
}

// A pattern for one block leaves the others as they are.
TEST(PlannedOperators, ArePlannedForSingleModules) {
  const std::vector<DryRunCall> calls = explained(
      plan_on({{"tensor", 2}}, {{.pattern = "blocks.1.norm2", .result = {"tensor", Shard{2}}}}));
  const std::vector<std::string> norms = results_of(calls, "aten::native_layer_norm");
  ASSERT_EQ(norms.size(), 5);
  EXPECT_EQ(std::ranges::count(norms, "[tensor: Shard(2)]"), 1);
  EXPECT_EQ(norms[3], "[tensor: Shard(2)]");
}

// Recomputation runs forward in backward: operators keep the layouts of the plan there.
TEST(PlannedOperators, AreTheSameInStagesAndWhenRecomputed) {
  models::GPT plain = make_gpt();
  const std::vector<double> expected = train(plain);
  Plan plan = plan_on({{"pipe", 2}, {"tensor", 2}}, kSequenceParallel);
  plan.micro_batches = 2;
  plan.recompute = {"blocks.?"};
  std::vector<models::GPT> nets = gpts(4);
  run_ranks(4, [&](const comm::Group& group) {
    models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
    TrainingStep training(
        *net,
        [net](const auto& in) mutable -> std::vector<Tensor> {
          return {torch::cross_entropy_loss(net(in[0]).flatten(0, 1), in[1].flatten())};
        },
        plan, group);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Tensor loss = training.step({tokens(), tokens().roll(1, 1)}).loss;
      EXPECT_NEAR(loss.item<double>(), expected[static_cast<std::size_t>(step)], 1e-11);
      optimizer.step();
    }
  });
}

TEST(PlannedOperators, RefuseWhatIsImpossible) {
  const auto error_of = [](const OperatorLayouts& operators) {
    return usage_error([&] { explained(plan_on({{"tensor", 2}}, operators)); });
  };
  EXPECT_THAT(error_of({{.pattern = "blocks.*.mlpinput", .result = {"tensor", Shard{1}}}}),
              AllOf(HasSubstr("blocks.*.mlpinput gives Shard(1) on tensor"),
                    HasSubstr("fits no module with parameters of its own"),
                    HasSubstr("the module has token_embedding")));
  // A block has no parameters of its own, only its children have.
  EXPECT_THAT(error_of({{.pattern = "blocks.0", .result = {"tensor", Shard{1}}}}),
              HasSubstr("fits no module with parameters of its own"));
  EXPECT_THAT(error_of({{.pattern = "*.mlp_output", .result = {"tensor", Shard{3}}}}),
              AllOf(HasSubstr("*.mlp_output gives Shard(3) on tensor"),
                    HasSubstr("has a result of [4, 8, 16], which has no dim 3")));
  EXPECT_THAT(error_of({{.pattern = "aten::gelu", .parts = {{2, 1}}}}),
              AllOf(HasSubstr("operator aten::gelu, for which the plan has aten::gelu takes {{2, "
                              "1}}, on [4, 8, 64]"),
                    HasSubstr("tuple 0 has 2 numbers")));
  EXPECT_THAT(error_of({{.pattern = "aten::gelu", .parts = {{3, 1, 1}}}}), HasSubstr("tuple 0"));
  for (const std::string name : {"aten::softmax", "aten::nosuch", "nosuch::*"}) {
    EXPECT_THAT(error_of({{.pattern = name, .result = {"tensor", Shard{0}}}}),
                HasSubstr(name + " fits no operator with a rule"));
  }
  EXPECT_THAT(error_of({{.pattern = "aten::transpose", .result = {"tensor", Shard{0}}}}),
              HasSubstr("returns its input or a view of it"));
}

// All ranks fail together, and the groups stay usable.
TEST(PlannedOperators, AreRefusedOnAllRanks) {
  const Plan plan =
      plan_on({{"tensor", 2}}, {{.pattern = "nowhere", .result = {"tensor", Replicate{}}}});
  std::vector<models::GPT> nets = gpts(2);
  run_ranks(2, [&](const comm::Group& group) {
    models::GPT& net = nets[static_cast<std::size_t>(group.rank())];
    EXPECT_THAT(usage_error([&] { static_cast<void>(parallelize(*net, plan, group)); }),
                HasSubstr("nowhere fits no module"));
    EXPECT_FALSE(has_layout(net->parameters().front()));
    const Parallelized parallelized = parallelize(*net, plan_on({{"tensor", 2}}, {}), group);
    EXPECT_TRUE(has_layout(net->parameters().front()));
  });
}

// Names do not say which of two modules on a mesh is meant.
TEST(PlannedOperators, ByNameAreTheSameForAllModulesOfAMesh) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  models::GPT first = make_gpt();
  models::GPT second = make_gpt();
  const OperatorLayouts layouts = {{.pattern = "aten::gelu", .result = {"tensor", Shard{0}}}};
  detail::set_operator_layouts(first.get(), mesh, layouts);
  detail::set_operator_layouts(second.get(), mesh, layouts);
  OperatorLayouts of_module = layouts;
  of_module.push_back({.pattern = "head", .result = {"tensor", Shard{0}}});
  detail::set_operator_layouts(second.get(), mesh, of_module);
  for (const OperatorLayouts& others :
       {OperatorLayouts(), {{.pattern = "aten::relu", .result = {"tensor", Shard{0}}}}}) {
    EXPECT_THAT(
        usage_error([&] { detail::set_operator_layouts(second.get(), mesh, others); }),
        AllOf(HasSubstr("aten::gelu gives Shard(0) on tensor"), HasSubstr("a mesh of its own")));
  }
}

}  // namespace
}  // namespace trireme

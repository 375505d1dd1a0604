// SPDX-License-Identifier: Apache-2.0
// Each operator and parameter counts in one group, whatever the depth.
#include <trireme/graph/show/aggregate.h>

#include <trireme/base/error.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/show/pictures/drawing.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/show/graphs.h>

namespace trireme::test {
namespace {

using graph::Graph;
using graph::detail::Group;
using graph::detail::Sums;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> paths_of(const std::vector<Group>& groups) {
  std::vector<std::string> paths;
  for (const Group& group : groups) paths.push_back(group.path);
  return paths;
}

const Sums& sums_of(const std::vector<Group>& groups, const std::string& path) {
  return std::ranges::find(groups, path, &Group::path)->sums;
}

TEST(Fold, CountsAllAtEveryDepth) {
  const Graph graph = gpt_graph();
  const Sums whole = graph::detail::fold(graph, 0, {}).at(0).sums;
  EXPECT_EQ(whole.operators, graph.num_nodes());
  std::int64_t parameters = 0;
  for (const graph::ValueId id : graph.parameters) {
    parameters += graph::detail::elements_of(graph.value(id));
  }
  EXPECT_EQ(whole.parameters, parameters);
  for (int depth = 1; depth < 6; ++depth) {
    Sums sum;
    for (const Group& group : graph::detail::fold(graph, depth, {})) sum += group.sums;
    EXPECT_EQ(sum.operators, whole.operators);
    EXPECT_EQ(sum.parameters, whole.parameters);
    EXPECT_DOUBLE_EQ(sum.flops, whole.flops);
    EXPECT_DOUBLE_EQ(sum.backward_flops, whole.backward_flops);
    EXPECT_EQ(sum.bytes, whole.bytes);
    EXPECT_EQ(sum.kept_bytes, whole.kept_bytes);
  }
}

TEST(Fold, TakesWhatIsDeeperIntoTheModuleAtItsDepth) {
  const Graph graph = gpt_graph(2, false);
  EXPECT_EQ(paths_of(graph::detail::fold(graph, 0, {})), (std::vector<std::string>{""}));
  EXPECT_EQ(paths_of(graph::detail::fold(graph, 1, {})),
            (std::vector<std::string>{"", "token_embedding", "position_embedding", "blocks", "norm",
                                      "head"}));
  const auto groups = graph::detail::fold(graph, 2, {});
  EXPECT_EQ(paths_of(groups), (std::vector<std::string>{"", "token_embedding", "position_embedding",
                                                        "blocks.0", "blocks.1", "norm", "head"}));
  EXPECT_EQ(sums_of(groups, "blocks.0").parameters, sums_of(groups, "blocks.1").parameters);
  EXPECT_EQ(sums_of(groups, "head").parameters, 40 * 16);
  EXPECT_EQ(graph::detail::folded("a.b.c", 2), "a.b");
  EXPECT_EQ(graph::detail::folded("a.b.c", 5), "a.b.c");
  EXPECT_EQ(graph::detail::depth_of(""), 0);
  EXPECT_EQ(graph::detail::depth_of("a.b.c"), 3);
}

TEST(Fold, KeepsEachMemoryOnce) {
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors {
                                  const at::Tensor h = x[0].exp();               // keeps its result
                                  return {(h.view({-1}) * h.view({-1})).sum()};  // and views of it
                                },
                                {torch::ones({4, 4}).requires_grad_()}});
  const std::vector<Sums> sums = graph::detail::sums_of_operators(graph, {});
  EXPECT_EQ(sums[0].kept_bytes, 4 * 4 * 4);
  for (std::size_t i = 1; i < sums.size(); ++i) EXPECT_EQ(sums[i].kept_bytes, 0) << i;
  EXPECT_EQ(graph::detail::kept_bytes_of_inputs(graph), 0);
  const Graph other = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors { return {x[0].square().sum()}; },
                                {torch::ones({4, 4}).requires_grad_()}});
  EXPECT_EQ(graph::detail::kept_bytes_of_inputs(other), 4 * 4 * 4);
}

TEST(Fold, GivesOperatorsAfterAMarkToIt) {
  const Graph graph = captured(residual());
  const auto groups = graph::detail::fold(graph, 1, {});
  EXPECT_EQ(paths_of(groups), (std::vector<std::string>{"", "tail", "conv", "norm", "head"}));
  EXPECT_FALSE(groups[0].is_mark);
  EXPECT_TRUE(groups[1].is_mark);
  const auto whole = graph::detail::fold(graph, 0, {});
  EXPECT_EQ(paths_of(whole), (std::vector<std::string>{"", "tail"}));
  EXPECT_EQ(whole[1].sums.operators, 0) << "the one line for all has them";
}

// One was left out where a module with a line of its own, another mark or nothing came after it.
TEST(Fold, HasEveryMark) {
  torch::nn::Linear block(4, 4);
  auto net = std::make_shared<torch::nn::Module>();
  net->register_module("block", block);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  at::Tensor h = mark(x[0], "before block");
                                  h = mark(mark(block->forward(h), "one"), "two").exp();
                                  return {mark(h.sum(), "end")};
                                },
                                {torch::ones({2, 4})}});
  const auto groups = graph::detail::fold(graph, 1, {});
  EXPECT_EQ(paths_of(groups),
            (std::vector<std::string>{"before block", "one", "two", "end", "block"}));
  EXPECT_EQ(sums_of(groups, "one").operators, 0);
  EXPECT_EQ(sums_of(groups, "two").operators, 2);
}

TEST(Fold, CountsAParameterWithTheOperatorThatIsGivenItFirst) {
  auto net = std::make_shared<torch::nn::Module>();
  auto one = std::make_shared<torch::nn::Module>();
  auto other = std::make_shared<torch::nn::Module>();
  one->register_parameter("weight", torch::ones({2, 4}));
  other->register_parameter("bias", torch::ones({2}));
  net->register_module("one", one);
  net->register_module("other", other);
  const Graph graph = captured({net,
                                [=](const Tensors& x) -> Tensors {
                                  const at::Tensor bias = other->parameters()[0];
                                  return {torch::linear(x[0], one->parameters()[0], bias).sum()};
                                },
                                {torch::ones({3, 4})}});
  std::int64_t in_boxes = 0;
  for (const auto& box : graph::detail::draw(graph, {.depth = 1}).boxes) {
    in_boxes += box.sums.parameters;
  }
  EXPECT_EQ(in_boxes, 8 + 2);
  std::int64_t in_groups = 0;
  for (const Group& group : graph::detail::fold(graph, 1, {})) in_groups += group.sums.parameters;
  EXPECT_EQ(in_groups, 8 + 2);
}

TEST(Fold, CountsParametersOfCodeWithoutModulesAtTheirFirstUse) {
  auto net = std::make_shared<torch::nn::Module>();
  net->register_parameter("first", torch::ones({2, 2}));
  net->register_parameter("second", torch::ones({2, 2}));
  net->register_parameter("unused", torch::ones({3}));
  const Graph graph = captured({net,
                                [net](const Tensors& x) -> Tensors {
                                  const auto weights = net->parameters();
                                  const at::Tensor h = torch::linear(x[0], weights[0]);
                                  return {torch::linear(mark(h, "later"), weights[1]).sum()};
                                },
                                {torch::ones({2, 2})}});
  const auto groups = graph::detail::fold(graph, 2, {});
  EXPECT_EQ(sums_of(groups, "").parameters, 4 + 3);
  EXPECT_EQ(sums_of(groups, "later").parameters, 4);
}

TEST(Fold, SaysWhichStagesAGroupIsIn) {
  const Graph graph = gpt_graph(2);
  const std::vector<graph::ModuleStage> stages = {{"token_embedding", 0}, {"blocks.1", 1}};
  const auto groups = graph::detail::fold(graph, 2, graph::cut(graph, stages));
  EXPECT_EQ(sums_of(groups, "blocks.0").last_stage, 0);
  EXPECT_EQ(sums_of(groups, "blocks.1").first_stage, 1);
  const auto coarse = graph::detail::fold(graph, 1, graph::cut(graph, stages));
  EXPECT_EQ(sums_of(coarse, "blocks").first_stage, 0);
  EXPECT_EQ(sums_of(coarse, "blocks").last_stage, 1);
}

TEST(Fold, RefusesDepthsAndBoundariesThatAreNone) {
  const Graph graph = gpt_graph(1);
  EXPECT_THAT([&] { graph::detail::fold(graph, -1, {}); },
              ThrowsMessage<UsageError>(HasSubstr("depth -1")));
  const int end = graph.num_nodes();
  for (const std::vector<int>& none :
       {std::vector<int>{0}, {1, end}, {0, end + 1}, {0, 5, 5, end}, {0, 7, 5, end}}) {
    EXPECT_THAT([&] { graph::detail::fold(graph, 2, none); },
                ThrowsMessage<UsageError>(HasSubstr("TrainingStep::boundaries")));
  }
}

}  // namespace
}  // namespace trireme::test

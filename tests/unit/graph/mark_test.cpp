// SPDX-License-Identifier: Apache-2.0
// A mark does nothing to tensors, and names a place where a graph can be cut.
#include <trireme/graph/mark.h>

#include <trireme/base/error.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/guard.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using graph::Graph;
using graph::ModuleStage;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using Stages = std::vector<ModuleStage>;

std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const graph::Mark& mark : graph.marks) names.push_back(mark.name);
  return names;
}

// Code without modules of its own: parameters and operators.
Subject functional(bool is_marked = true) {
  auto net = std::make_shared<nn::Module>();
  for (const char* name : {"w0", "w1", "w2"}) {
    net->register_parameter(name, torch::arange(64).reshape({8, 8}).sin());
  }
  const auto place = [is_marked](const at::Tensor& tensor, std::string_view name) {
    return is_marked ? mark(tensor, name) : tensor;
  };
  return {net,
          [net, place](const Tensors& x) -> Tensors {
            const auto weight = [&](const char* name) { return net->named_parameters()[name]; };
            at::Tensor h = place(x[0], "in");
            h = torch::linear(h, weight("w0")).relu_();
            h = place(h, "middle");
            h = torch::dropout(torch::linear(h, weight("w1")), 0.2, true);
            h = place(h, "out");
            h = torch::linear(h, weight("w2")) + x[0];
            return {place(h.square().mean(), "end")};
          },
          {torch::arange(32).reshape({4, 8}).cos().requires_grad_()}};
}

TEST(Mark, IsTheTensorItself) {
  const at::Tensor leaf = torch::ones({3}).requires_grad_();
  EXPECT_TRUE(mark(leaf, "here").is_same(leaf));
  const at::Tensor made = leaf * 2;
  const at::Tensor marked = mark(made, "here");
  EXPECT_TRUE(marked.is_same(made));
  EXPECT_EQ(marked.grad_fn(), made.grad_fn());
  marked.sum().backward();
  EXPECT_TRUE(torch::equal(leaf.grad(), torch::full({3}, 2)));
  EXPECT_FALSE(mark(at::Tensor(), "here").defined());
}

TEST(Mark, NeedsAName) {
  EXPECT_THAT([] { mark(torch::ones({1}), ""); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("empty name"), HasSubstr("decoder"))));
}

TEST(Mark, NamesAPlaceInTheGraphAndAddsNoOperator) {
  const Graph graph = captured(functional());
  EXPECT_EQ(graph::first_difference(graph, captured(functional(false))), "");
  EXPECT_THAT(names_of(graph), ElementsAre("in", "middle", "out", "end"));
  EXPECT_EQ(graph.marks[0].node, 0);
  EXPECT_EQ(graph.marks[0].value, graph.inputs[0]);
  EXPECT_EQ(graph.node(graph.marks[1].node).name(), "aten::linear");
  EXPECT_EQ(graph.node(graph.marks[1].node - 1).name(), "aten::relu_");
  EXPECT_EQ(graph.marks[1].value, graph.node(graph.marks[1].node - 1).outputs[0]);
  EXPECT_EQ(graph.marks[1].module, "");
  EXPECT_EQ(graph.marks[3].node, graph.num_nodes());
}

TEST(Mark, BeginsAStageWithTheBitsOfTheModule) {
  const Subject subject = functional();
  const auto graph = std::make_shared<const Graph>(captured(subject));
  const std::vector<int> boundaries =
      graph::cut(*graph, Stages{{"out", 2}, {"in", 0}, {"middle", 1}});
  EXPECT_THAT(boundaries,
              ElementsAre(0, graph->marks[1].node, graph->marks[2].node, graph->num_nodes()));
  expect_same(eager(subject), replayed(subject, graph, boundaries));
}

TEST(Mark, StandsBesideModules) {
  nn::Sequential first(nn::Linear(4, 4), nn::ReLU());
  nn::Linear last(4, 4);
  auto net = std::make_shared<nn::Module>();
  net->register_module("first", first);
  net->register_module("last", last);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  const at::Tensor h = mark(first->forward(x[0]), "between");
                                  return {last->forward(torch::tanh(h)).sum()};
                                },
                                {torch::ones({2, 4})}});
  EXPECT_EQ(graph.node(graph.marks[0].node).name(), "aten::tanh");
  EXPECT_THAT(graph::cut(graph, Stages{{"first", 0}, {"between", 1}, {"last", 1}}),
              ElementsAre(0, graph.marks[0].node, graph.num_nodes()));
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"between", 0}, {"first", 1}}); },
              ThrowsMessage<UsageError>(
                  HasSubstr("mark between of stage 0 runs after module first of stage 1")));
}

TEST(Mark, OfATakenNameGetsANumber) {
  nn::Linear block(4, 4);
  auto net = std::make_shared<nn::Module>();
  net->register_module("block", block);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  at::Tensor h = mark(x[0], "block");
                                  for (int i = 0; i < 3; ++i) {
                                    h = block->forward(mark(h, "round"));
                                  }
                                  return {h.sum()};
                                },
                                {torch::ones({2, 4})}});
  EXPECT_THAT(names_of(graph), ElementsAre("block.1", "round", "round.1", "round.2"));
}

TEST(MarkErrors, ListMarksAmongTheNames) {
  const Graph graph = captured(functional());
  const auto expect_error = [&](const Stages& stages, const auto& matcher) {
    EXPECT_THAT([&] { graph::cut(graph, stages); }, ThrowsMessage<UsageError>(matcher));
  };
  expect_error({{"in", 0}, {"midle", 1}},
               AllOf(HasSubstr("no module or mark of the graph is called 'midle'"),
                     HasSubstr("did you mean 'middle'?"),
                     HasSubstr("marks are 'in', 'middle', 'out', 'end'")));
  expect_error({{"entirely different", 0}},
               AllOf(HasSubstr("named_modules"), HasSubstr("marks are 'in'")));
  expect_error({{"in", 0}, {"end", 1}}, HasSubstr("no operator of forward comes after mark end"));
  expect_error({{"in", 1}, {"out", 0}}, HasSubstr("mark out of stage 0 runs after mark in of"));
  expect_error({{"middle", -1}}, HasSubstr("mark middle has stage -1"));
  const Graph without = captured(functional(false));
  EXPECT_THAT([&] { graph::cut(without, Stages{{"middle", 0}}); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("no module of the graph"), Not(HasSubstr("marks")))));
  // The captured module itself has an empty name, which was suggested for short names.
  EXPECT_THAT([&] { graph::cut(without, Stages{{"c", 0}}); },
              ThrowsMessage<UsageError>(Not(HasSubstr("mean ''"))));
}

TEST(MarkErrors, SayWhyAPlaceIsNoBoundary) {
  auto net = std::make_shared<nn::Module>();
  net->register_parameter("weight", torch::ones({4, 4}));
  const Graph graph = captured({net,
                                [net](const Tensors& x) -> Tensors {
                                  at::Tensor h = torch::linear(x[0], net->parameters()[0]);
                                  const at::Tensor view = h.view({-1});
                                  h = mark(h, "here");
                                  h.add_(1);
                                  return {h.sum() + view.sum()};
                                },
                                {torch::ones({2, 4})}});
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"", 0}, {"here", 1}}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("stage 1 cannot begin before operator 2"),
                                              HasSubstr("share memory"))));
}

}  // namespace
}  // namespace trireme::test

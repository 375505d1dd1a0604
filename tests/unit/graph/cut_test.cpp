// SPDX-License-Identifier: Apache-2.0
// Stages by modules, and of equal cost: compared with every way there is.
#include <trireme/graph/cut.h>

#include <models/gpt.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

#include <algorithm>
#include <limits>
#include <random>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using graph::Graph;
using graph::ModuleStage;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Stages = std::vector<ModuleStage>;

Subject gpt(bool tied, std::int64_t layers = 3) {
  models::GPT net(models::GPTOptions{.vocabulary = 30,
                                     .sequence = 8,
                                     .hidden = 8,
                                     .layers = layers,
                                     .heads = 2,
                                     .dropout = 0.1,
                                     .tied = tied});
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            return {nn::functional::cross_entropy(net->forward(x[0]).flatten(0, 1), x[1])};
          },
          {torch::randint(30, {2, 8}), torch::randint(30, {16})}};
}

class Cut : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::manual_seed(1);
    subject_ = gpt(GetParam());
    graph_ = std::make_shared<const Graph>(captured(subject_));
  }

  Subject subject_;
  std::shared_ptr<const Graph> graph_;
};

TEST_P(Cut, BeginsStagesWithTheirFirstModules) {
  const Stages stages = {
      {"token_embedding", 0}, {"blocks.0", 0}, {"blocks.1", 1}, {"blocks.2", 2}, {"norm", 2}};
  const std::vector<int> boundaries = graph::cut(*graph_, stages);
  ASSERT_EQ(boundaries.size(), 4U);
  EXPECT_EQ(boundaries.front(), 0);
  EXPECT_EQ(boundaries.back(), graph_->num_nodes());
  EXPECT_EQ(graph_->node(boundaries[1]).module, "blocks.1.norm1");
  EXPECT_EQ(graph_->node(boundaries[1] - 1).module, "blocks.0");
  EXPECT_EQ(graph_->node(boundaries[2]).module, "blocks.2.norm1");
  expect_same(eager(subject_), replayed(subject_, graph_, boundaries));
}

TEST_P(Cut, TakesStagesInAnyOrderOfTheList) {
  EXPECT_EQ(graph::cut(*graph_, Stages{{"blocks.2", 1}, {"blocks.0", 0}}),
            graph::cut(*graph_, Stages{{"blocks.0", 0}, {"blocks.2", 1}}));
  EXPECT_EQ(graph::cut(*graph_, Stages{{"blocks", 0}}), (std::vector<int>{0, graph_->num_nodes()}));
}

TEST_P(Cut, OfBalanceGivesTheBitsOfTheModule) {
  const std::vector<int> boundaries = graph::balance(*graph_, 4);
  ASSERT_EQ(boundaries.size(), 5U);
  expect_same(eager(subject_), replayed(subject_, graph_, boundaries));
}

INSTANTIATE_TEST_SUITE_P(Heads, Cut, testing::Bool(),
                         [](const auto& item) { return item.param ? "Tied" : "OfItsOwn"; });

TEST(CutErrors, NameWhatIsWrong) {
  const Graph graph = captured(gpt(false));
  const auto expect_error = [&](const Stages& stages, const auto& matcher) {
    EXPECT_THAT([&] { graph::cut(graph, stages); }, ThrowsMessage<UsageError>(matcher));
  };
  expect_error({}, HasSubstr("no stages"));
  expect_error({{"blocks.0", 0}, {"block.1", 1}},
               AllOf(HasSubstr("'block.1'"), HasSubstr("did you mean 'blocks.1'?")));
  expect_error({{"something entirely different", 0}},
               AllOf(HasSubstr("named_modules"), HasSubstr("'blocks'")));
  expect_error({{"blocks.0", 0}, {"blocks.1", 2}},
               AllOf(HasSubstr("stage 1 has no module or mark"), HasSubstr("without gaps")));
  expect_error({{"blocks.0", 2}}, HasSubstr("stage 0 has no module or mark"));
  expect_error({{"blocks.0", -1}}, HasSubstr("has stage -1"));
  expect_error({{"blocks.0", 1}, {"blocks.1", 0}},
               AllOf(HasSubstr("blocks.1 of stage 0 runs after module blocks.0 of stage 1"),
                     HasSubstr("in the order")));
  expect_error({{"dropout", 0}, {"blocks.1", 1}},
               AllOf(HasSubstr("dropout has no parameters"), HasSubstr("before or after")));
  expect_error({{"blocks", 0}, {"blocks.1", 1}},
               AllOf(HasSubstr("module blocks.1 of stage 1 begins with"),
                     HasSubstr("aten::layer_norm"), HasSubstr("one piece of forward")));
}

TEST(CutErrors, NameModulesThatForwardDoesNotCallOrCutsApart) {
  nn::Linear first(4, 4);
  nn::Linear second(4, 4);
  nn::Linear unused(4, 4);
  auto net = std::make_shared<nn::Module>();
  net->register_module("first", first);
  net->register_module("second", second);
  net->register_module("unused", unused);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  at::Tensor h = first->forward(x[0]);
                                  const at::Tensor view = h.view({-1});
                                  h.add_(second->bias);
                                  return {second->forward(h).sum() + view.sum()};
                                },
                                {torch::randn({2, 4})}});
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"first", 0}, {"unused", 1}}); },
              ThrowsMessage<UsageError>(HasSubstr("no operator of forward touches")));
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"first", 0}, {"second", 1}}); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("stage 1 cannot begin"), HasSubstr("share memory"))));
  EXPECT_THAT([&] { graph::balance(graph, 99); },
              ThrowsMessage<UsageError>(HasSubstr("too few for 99 stages")));
  EXPECT_THAT([&] { graph::balance(graph, 0); }, ThrowsMessage<UsageError>(HasSubstr("0 stages")));
}

TEST(Cut, TakesWhatRunsBeforeStage1ForStage0) {
  const Graph graph = captured(gpt(false));
  const std::vector<int> boundaries = graph::cut(graph, Stages{{"blocks.1", 1}, {"blocks.2", 2}});
  EXPECT_EQ(boundaries,
            graph::cut(graph, Stages{{"blocks.0", 0}, {"blocks.1", 1}, {"blocks.2", 2}}));
}

// Numbers were one too low where stage 0 was not named.
TEST(CutErrors, NumberStagesAsTheyWereGivenWhereStage0IsNotNamed) {
  const Graph graph = captured(gpt(false));
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"blocks.2", 1}, {"blocks.1", 2}}); },
              ThrowsMessage<UsageError>(
                  HasSubstr("blocks.2 of stage 1 runs after module blocks.1 of stage 2")));
  EXPECT_THAT([&] { graph::cut(graph, Stages{{"blocks", 1}, {"blocks.1", 2}}); },
              ThrowsMessage<UsageError>(HasSubstr("module blocks.1 of stage 2 begins with")));
  nn::Linear first(4, 4);
  nn::Linear second(4, 4);
  const nn::Sequential net(first, second);
  const Graph of_two = captured({net.ptr(),
                                 [=](const Tensors& x) mutable -> Tensors {
                                   return {second->forward(first->forward(x[0])).sum()};
                                 },
                                 {torch::randn({2, 4})}});
  EXPECT_THAT([&] { graph::cut(of_two, Stages{{"0", 1}, {"1", 2}}); },
              ThrowsMessage<UsageError>(HasSubstr("nothing runs before module 0")));
}

// As C++ modules are tied: both register the tensor.
struct TiedHeadImpl : nn::Module {
  explicit TiedHeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return torch::matmul(x, weight.t()); }
  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

struct TiedNetImpl : nn::Module {
  explicit TiedNetImpl(bool has_head_first) {
    if (has_head_first) register_module("head", head);
    register_module("embedding", embedding);
    register_module("body", body);
    if (!has_head_first) register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& first, const at::Tensor& second) {
    // Without a second gradient, which pieces would add in another order.
    const at::Tensor x = embedding(first) + embedding(second).detach();
    return head(torch::relu(body(x)));
  }
  nn::Embedding embedding = nn::Embedding(5, 4);
  nn::Linear body = nn::Linear(4, 4);
  TiedHead head = TiedHead(embedding->weight);
};
TORCH_MODULE(TiedNet);

// The second module of a shared weight could begin no stage: the first use of the weight is the
// first module's.
TEST(Cut, BeginsAStageWithTheSecondModuleOfASharedWeight) {
  for (const bool has_head_first : {false, true}) {
    SCOPED_TRACE(has_head_first);
    TiedNet net(has_head_first);
    const Subject subject = {
        net.ptr(),
        [net](const Tensors& x) mutable -> Tensors {
          return {nn::functional::cross_entropy(net->forward(x[0], x[1]), x[1])};
        },
        {torch::randint(5, {6}), torch::randint(5, {6})}};
    const auto graph = std::make_shared<const Graph>(captured(subject));
    const graph::Extent extent = graph::extent_of(*graph, "head");
    EXPECT_EQ(extent.first, extent.last);
    EXPECT_EQ(graph->node(extent.first).name(), "aten::t");
    EXPECT_EQ(graph->node(extent.first).module, "head");
    EXPECT_EQ(graph->node(graph::extent_of(*graph, "embedding").last).name(), "aten::embedding");
    const std::vector<int> boundaries = graph::cut(*graph, Stages{{"head", 1}});
    EXPECT_EQ(boundaries, (std::vector<int>{0, extent.first, graph->num_nodes()}));
    expect_same(eager(subject), replayed(subject, graph, boundaries));
  }
}

struct Cost {
  double largest = 0;
  std::int64_t bytes = 0;
  bool operator<(const Cost& other) const {
    return std::tie(largest, bytes) < std::tie(other.largest, other.bytes);
  }
};

Cost cost_of(const Graph& graph, const std::vector<int>& boundaries) {
  const std::vector<std::int64_t> across = graph::bytes_across(graph);
  std::vector<double> sums = {0};
  for (const graph::Node& node : graph.nodes) {
    sums.push_back(sums.back() + node.flops + node.backward_flops);
  }
  Cost cost;
  for (std::size_t i = 0; i + 1 < boundaries.size(); ++i) {
    const auto begin = static_cast<std::size_t>(boundaries[i]);
    const auto end = static_cast<std::size_t>(boundaries[i + 1]);
    cost.largest = std::max(cost.largest, sums[end] - sums[begin]);
    if (i > 0) cost.bytes += across[begin];
  }
  return cost;
}

// Every way to go on from `boundaries`.
void try_all(const Graph& graph, int stages, std::vector<int>& boundaries, Cost& best) {
  if (stages == 1) {
    boundaries.push_back(graph.num_nodes());
    best = std::min(best, cost_of(graph, boundaries));
    boundaries.pop_back();
    return;
  }
  for (int next = boundaries.back() + 1; next < graph.num_nodes(); ++next) {
    if (!graph::reason_against_cut(graph, next).empty()) continue;
    boundaries.push_back(next);
    try_all(graph, stages - 1, boundaries, best);
    boundaries.pop_back();
  }
}

TEST(Balance, IsTheBestOfAllWays) {
  nn::Sequential net(nn::Linear(4, 9), nn::ReLU(nn::ReLUOptions(true)), nn::Linear(9, 3),
                     nn::Tanh(), nn::Linear(3, 7), nn::Dropout(0.5), nn::Linear(7, 2),
                     nn::Sigmoid());
  Graph graph =
      captured({net.ptr(),
                [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).sum()}; },
                {torch::randn({5, 4})}});
  std::random_device entropy;
  std::mt19937 random(entropy());
  for (int trial = 0; trial < 30; ++trial) {
    for (graph::Node& node : graph.nodes) {
      node.flops = std::uniform_int_distribution<int>(0, 6)(random);
      node.backward_flops = std::uniform_int_distribution<int>(0, 6)(random);
    }
    for (int stages = 1; stages <= 4; ++stages) {
      Cost best = {.largest = std::numeric_limits<double>::infinity()};
      std::vector<int> boundaries = {0};
      try_all(graph, stages, boundaries, best);
      const std::vector<int> given = graph::balance(graph, stages);
      ASSERT_EQ(given.size(), static_cast<std::size_t>(stages) + 1);
      EXPECT_TRUE(std::ranges::is_sorted(given, std::less_equal<>()));
      const Cost cost = cost_of(graph, given);
      EXPECT_EQ(cost.largest, best.largest);
      EXPECT_EQ(cost.bytes, best.bytes);
    }
  }
}

}  // namespace
}  // namespace trireme::test

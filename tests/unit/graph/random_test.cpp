// SPDX-License-Identifier: Apache-2.0
// Numbered random streams: masks follow from seed, step, micro-batch and operator alone.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

#include <thread>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using graph::RandomStream;
using graph::RunOptions;

// Every kind of random operator, one after the other.
Subject random_subject() {
  nn::LSTM lstm(nn::LSTMOptions(6, 6).num_layers(2).dropout(0.5));
  auto net = std::make_shared<nn::Module>();
  net->register_module("lstm", lstm);
  return {net,
          [lstm](const Tensors& x) mutable -> Tensors {
            at::Tensor h = std::get<0>(lstm->forward(x[0]));
            h = torch::dropout(h, 0.5, true);
            h = at::scaled_dot_product_attention(h, h, h, {}, 0.5);
            h = torch::feature_dropout(h, 0.5, true) + torch::alpha_dropout(h, 0.5, true);
            h = h + torch::randn_like(h) * torch::rand({6}) + torch::bernoulli(torch::sigmoid(h));
            h = h.index_select(1, torch::randperm(3));
            h = h + torch::normal(0.0, 1.0, {4, 3, 6}) + torch::randint(5, {4, 3, 6});
            const at::Tensor chosen = torch::multinomial(torch::full({8}, 0.5), 3);
            const at::Tensor noise = torch::empty_like(h).exponential_();
            return {h.square().mean(), chosen, noise};
          },
          {torch::randn({4, 3, 6}).requires_grad_()}};
}

class NumberedRandom : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::manual_seed(5);
    subject_ = random_subject();
    graph_ = std::make_shared<const graph::Graph>(captured(subject_));
  }

  Outcome run(const RandomStream& stream) {
    return replayed(subject_, graph_, {0, graph_->num_nodes()}, {.random = stream});
  }

  // Of every random operator the first tensor that it gives.
  Tensors drawn(const RandomStream& stream, std::uint64_t default_seed) {
    torch::manual_seed(default_seed);
    Subject subject = subject_;
    auto all = std::make_shared<graph::Graph>(*graph_);
    for (const graph::Node& node : all->nodes) {
      if (node.is_random) all->results.push_back(node.outputs[0]);
    }
    const graph::Piece piece(all, 0, all->num_nodes(), *subject.module);
    Tensors results = piece.run(fresh(subject.inputs), {.random = stream});
    results.erase(results.begin());
    return results;
  }

  Subject subject_;
  std::shared_ptr<const graph::Graph> graph_;
};

TEST_F(NumberedRandom, EveryRandomOperatorIsKnown) {
  std::vector<std::string> random;
  for (const graph::Node& node : graph_->nodes) {
    if (node.is_random) random.push_back(node.name());
  }
  // In no order: C++ leaves that of operands open.
  EXPECT_THAT(random,
              testing::UnorderedElementsAre(
                  "aten::lstm.input", "aten::dropout", "aten::scaled_dot_product_attention",
                  "aten::feature_dropout", "aten::alpha_dropout", "aten::randn_like", "aten::rand",
                  "aten::bernoulli", "aten::randperm", "aten::normal.float_float", "aten::randint",
                  "aten::multinomial", "aten::exponential_"));
}

TEST_F(NumberedRandom, DoesNotDependOnTheDefaultGenerator) {
  const Tensors first = drawn({.seed = 1}, 10);
  const Tensors second = drawn({.seed = 1}, 20);
  expect_same_tensors(first, second, "drawn");
}

TEST_F(NumberedRandom, LeavesTheDefaultGeneratorAlone) {
  torch::manual_seed(9);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const graph::Piece piece(graph_, 0, graph_->num_nodes(), *subject_.module);
  piece.run(fresh(subject_.inputs), {.random = RandomStream{.seed = 4}});
  EXPECT_TRUE(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST_F(NumberedRandom, DoesNotDependOnStagesOrThreads) {
  const RandomStream stream = {.seed = 3, .step = 2, .micro_batch = 5};
  const Outcome expected = run(stream);
  for (int boundary = 1; boundary < graph_->num_nodes(); ++boundary) {
    if (!graph::reason_against_cut(*graph_, boundary).empty()) continue;
    SCOPED_TRACE(boundary);
    Outcome given;
    std::thread([&] {
      given = replayed(subject_, graph_, {0, boundary, graph_->num_nodes()}, {.random = stream});
    }).join();
    expect_same(expected, given);
  }
}

TEST_F(NumberedRandom, DiffersBySeedStepMicroBatchAndOperator) {
  const RandomStream base = {.seed = 3, .step = 2, .micro_batch = 5};
  const Tensors numbers = drawn(base, 1);
  for (const RandomStream& other : {RandomStream{.seed = 4, .step = 2, .micro_batch = 5},
                                    RandomStream{.seed = 3, .step = 3, .micro_batch = 5},
                                    RandomStream{.seed = 3, .step = 2, .micro_batch = 6},
                                    RandomStream{.seed = 3, .step = 5, .micro_batch = 2}}) {
    const Tensors others = drawn(other, 1);
    // torch::rand and torch::exponential_ do not depend on what came before.
    EXPECT_FALSE(torch::equal(numbers.back(), others.back()));
    EXPECT_FALSE(torch::equal(numbers[0], others[0]));
  }
  const Subject two = {
      std::make_shared<nn::Module>(),
      [](const Tensors&) -> Tensors { return {torch::rand({9}), torch::rand({9})}; },
      {}};
  const auto graph = std::make_shared<const graph::Graph>(captured(two));
  const Outcome outcome = replayed(two, graph, {0, 2}, {.random = base});
  EXPECT_FALSE(torch::equal(outcome.results[0], outcome.results[1]));
}

TEST_F(NumberedRandom, LooksRandom) {
  const Subject subject = {std::make_shared<nn::Module>(),
                           [](const Tensors&) -> Tensors { return {torch::rand({1000})}; },
                           {}};
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  const graph::Piece piece(graph, 0, 1, *subject.module);
  Tensors all;
  for (int step = 0; step < 100; ++step) {
    all.push_back(piece.run({}, {.random = RandomStream{.seed = 1, .step = step}})[0]);
  }
  const at::Tensor numbers = torch::stack(all);
  EXPECT_NEAR(numbers.mean().item<double>(), 0.5, 0.005);
  EXPECT_NEAR(numbers.var().item<double>(), 1.0 / 12, 0.002);
  // First numbers of streams whose keys are neighbours.
  const at::Tensor first = numbers.select(1, 0);
  EXPECT_NEAR(first.mean().item<double>(), 0.5, 0.1);
  EXPECT_LT(std::abs(torch::corrcoef(torch::stack({numbers[0], numbers[1]}))[0][1].item<double>()),
            0.15);
}

}  // namespace
}  // namespace trireme::test

// SPDX-License-Identifier: Apache-2.0
// Parts of a graph by name, what they keep, and pieces that run them apart.
#include <models/gpt.h>
#include <trireme/base/error.h>
#include <trireme/graph/parts/kept_bytes.h>
#include <trireme/graph/parts/patterns.h>
#include <trireme/graph/show/aggregate.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

#include <random>
#include <string>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using graph::Graph;
using graph::Part;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Patterns = std::vector<std::string>;

Subject small_gpt() {
  models::GPT net(models::GPTOptions{
      .vocabulary = 30, .sequence = 8, .hidden = 8, .layers = 3, .heads = 2, .dropout = 0.1});
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            return {nn::functional::cross_entropy(net->forward(x[0]).flatten(0, 1), x[1])};
          },
          {torch::arange(16).reshape({2, 8}), torch::arange(16)}};
}

// In-place operators, buffers that one operator reads and another writes to, and a view of one.
struct WritingImpl : nn::Module {
  explicit WritingImpl(bool counts) {
    first = register_module("first", nn::Linear(4, 4));
    norm = register_module("norm", nn::BatchNorm1d(4));
    second = register_module("second", nn::Linear(4, 4));
    seen = register_buffer("seen", torch::ones({2, 4}));
    if (counts) calls = register_buffer("calls", torch::ones({}));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = first(input);
    if (calls.defined()) {
      x = torch::sigmoid(x + calls);
      calls.add_(1);
    }
    x = torch::exp(x + seen.select(0, 1) * 0.1);
    {
      const torch::NoGradGuard no_grad;
      seen.mul_(0.5).add_(x.detach().mean(0));
    }
    x = norm(x);
    torch::Tensor sum = x + input;
    torch::relu_(sum);
    return second(torch::tanh(sum)).square().mean();
  }
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
  torch::Tensor seen, calls;
};

Subject writing(bool counts = false) {
  const auto net = std::make_shared<WritingImpl>(counts);
  return {net,
          [net](const Tensors& x) -> Tensors { return {net->forward(x[0])}; },
          {torch::arange(12, torch::kFloat).reshape({3, 4}).div(7)}};
}

// The names of the operators of each part.
std::vector<std::string> names_of(const Graph& graph, const std::vector<Part>& parts) {
  std::vector<std::string> all;
  for (const Part& part : parts) {
    std::string& names = all.emplace_back();
    for (int node = part.begin; node < part.end; ++node) {
      if (node > part.begin) names += ' ';
      for (const char letter : graph.node(node).op.operator_name().name) {
        names += letter;
        if (names.ends_with("aten::")) names.resize(names.size() - 6);
      }
    }
  }
  return all;
}

std::vector<Part> parts_of(const Graph& graph, const Patterns& patterns) {
  return graph::parts_of(graph, 0, graph.num_nodes(), patterns);
}

class Parts : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::manual_seed(1);
  }
};

TEST_F(Parts, AreTheOutermostModulesThatAPatternFits) {
  const Graph graph = captured(small_gpt());
  const std::vector<Part> parts = parts_of(graph, {"blocks.*"});
  ASSERT_EQ(parts.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    EXPECT_TRUE(part.parts.empty());
    EXPECT_EQ(graph.node(part.begin).module, "blocks." + std::to_string(i) + ".norm1");
    EXPECT_TRUE(graph.node(part.end - 1).module.starts_with("blocks." + std::to_string(i)));
  }
  EXPECT_EQ(parts[0].end, parts[1].begin);
}

TEST_F(Parts, OfAnotherPatternLieWithin) {
  const Graph graph = captured(small_gpt());
  const std::vector<Part> parts = parts_of(graph, {"blocks.[12].norm2", "blocks.*"});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(parts[0].parts.empty());
  ASSERT_EQ(parts[1].parts.size(), 1U);
  EXPECT_EQ(names_of(graph, parts[1].parts), std::vector<std::string>{"layer_norm"});
  EXPECT_GT(parts[1].parts[0].begin, parts[1].begin);
}

TEST_F(Parts, MayBeEverything) {
  const Graph graph = captured(small_gpt());
  EXPECT_EQ(parts_of(graph, {"*"}), (std::vector<Part>{{.begin = 0, .end = graph.num_nodes()}}));
}

TEST_F(Parts, OfOperatorsReachToWhatKeepsTheirResults) {
  const Graph graph = captured(small_gpt());
  EXPECT_EQ(names_of(graph, parts_of(graph, {"aten::gelu"})),
            std::vector<std::string>(3, "gelu t matmul add_"));
  EXPECT_EQ(names_of(graph, parts_of(graph, {"aten::layer_norm", "aten::t"})).front(),
            "layer_norm t matmul add_");
  EXPECT_EQ(names_of(graph, parts_of(graph, {"aten::add.Tensor"})),
            std::vector<std::string>(6, "add layer_norm"));
  EXPECT_TRUE(parts_of(graph, {"aten::embedding"}).empty()) << "nothing keeps what it gives";
}

TEST_F(Parts, HaveMemoryThatIsWrittenToOnOneSide) {
  const Graph graph = captured(writing());
  const auto names = names_of(graph, parts_of(graph, {"aten::relu_"}));
  EXPECT_EQ(names, std::vector<std::string>{"add relu_"});
}

TEST_F(Parts, ThatFitNothingAreRefusedWithNearNames) {
  const Graph graph = captured(small_gpt());
  const auto check = [&](const std::string& pattern) {
    return [&graph, pattern] { graph::check_patterns(graph, Patterns{pattern}); };
  };
  EXPECT_THAT(check("blocs.*"), ThrowsMessage<UsageError>(AllOf(
                                    HasSubstr("'blocs.*' fits no module"), HasSubstr("blocks.*"))));
  EXPECT_THAT(check("aten::gelo"),
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("'aten::gelo' fits no operator"), HasSubstr("aten::gelu"))));
  EXPECT_THAT(check("blocks.*.dropout*"),
              ThrowsMessage<UsageError>(HasSubstr("no operators that could be told as its own")));
  EXPECT_THAT(check("xyz"), ThrowsMessage<UsageError>(HasSubstr("named_modules()")));
  EXPECT_NO_THROW(check("blocks.*.norm?")());
  EXPECT_NO_THROW(check("aten::l*")());
}

// -- what they keep -----------------------------------------------------------------------------

// A line knows units and a graph operators: the same choice has the same bytes in both.
TEST_F(Parts, KeepWhatTheLineOfThePieceSays) {
  std::mt19937 random(3);  // NOLINT(bugprone-random-generator-seed): the same in every run
  for (const Subject& subject : {small_gpt(), writing()}) {
    const Graph graph = captured(subject);
    const graph::PieceLine piece = graph::line_of(graph, 0, graph.num_nodes());
    const auto count = static_cast<int>(piece.line.units.size());
    ASSERT_EQ(piece.boundaries.size(), piece.line.units.size() + 1);
    std::int64_t in_tables = 0;
    for (const auto& sums : graph::detail::sums_of_operators(graph, {})) {
      in_tables += sums.kept_bytes;
    }
    EXPECT_EQ(in_tables, graph::kept_bytes(graph, 0, graph.num_nodes(), {}).kept);
    for (int round = 0; round < 100; ++round) {
      std::vector<graph::UnitRange> ranges;
      for (int unit = 0; unit < count; ++unit) {
        const int end = unit + 1 + static_cast<int>(random() % 5);
        if (random() % 2 == 0 || end > count) continue;
        ranges.push_back({unit, end});
        unit = end - 1;
      }
      // A part that keeps nothing is none.
      std::erase_if(ranges, [&](const graph::UnitRange& range) {
        for (int unit = range.begin; unit < range.end; ++unit) {
          if (piece.line.units[static_cast<std::size_t>(unit)].keeps) return false;
        }
        return true;
      });
      const graph::Choice choice = graph::evaluate(piece.line, ranges);
      const graph::KeptBytes bytes =
          graph::kept_bytes(graph, 0, graph.num_nodes(), piece.parts_of(ranges));
      EXPECT_EQ(bytes.kept, choice.kept);
      EXPECT_EQ(std::max(bytes.kept, bytes.rebuilding), choice.peak);
      EXPECT_EQ(bytes.cost, choice.cost);
    }
  }
}

// -- running them -------------------------------------------------------------------------------

TEST_F(Parts, RunAsTheRest) {
  for (const Subject& subject : {small_gpt(), writing()}) {
    const auto graph = std::make_shared<const Graph>(captured(subject));
    const Outcome expected = eager(subject);
    for (const Patterns& patterns :
         {Patterns{"*"}, Patterns{"aten::l*", "aten::t*"},
          Patterns{"blocks.*", "aten::g*", "first"}, Patterns{"norm", "aten::mul", "aten::exp"}}) {
      const std::vector<Part> parts = parts_of(*graph, patterns);
      const graph::Piece piece(graph, 0, graph->num_nodes(), *subject.module, parts);
      std::size_t calls = 0;
      graph::RunOptions options;
      options.around = [&](const Part&, const graph::RunPart& run, const Tensors& inputs) {
        ++calls;
        return run(inputs);
      };
      for (const bool has_around : {false, true}) {
        expect_same(expected, outcome_of(subject, [&](const Tensors& inputs) {
                      Tensors results =
                          piece.run(inputs, has_around ? options : graph::RunOptions());
                      backward_from(results[0]);
                      return results;
                    }));
      }
      EXPECT_GE(calls, parts.size());
    }
  }
}

TEST_F(Parts, AreGivenCopiesOfWhatOthersWriteTo) {
  const Subject subject = writing(/*counts=*/true);
  const auto graph = std::make_shared<const Graph>(captured(subject));
  const std::vector<Part> parts = parts_of(*graph, {"aten::add.Tensor", "aten::sigmoid"});
  ASSERT_EQ(names_of(*graph, parts).front(), "add sigmoid");
  const graph::Piece piece(graph, 0, graph->num_nodes(), *subject.module, parts);
  graph::RunOptions options;
  std::vector<std::function<void()>> again;
  options.around = [&](const Part&, const graph::RunPart& run, const Tensors& inputs) {
    const Tensors outputs = run(inputs);
    again.emplace_back([=] { expect_same_tensors(outputs, run(inputs), "output"); });
    return outputs;
  };
  piece.run(subject.inputs, options);
  ASSERT_FALSE(again.empty());
  again.front()();
}

TEST_F(Parts, OutOfOrderAreRefused) {
  const Subject subject = small_gpt();
  const auto graph = std::make_shared<const Graph>(captured(subject));
  const auto make = [&](const std::vector<Part>& parts) {
    return [&graph, &subject, parts] { graph::Piece(graph, 0, 10, *subject.module, parts); };
  };
  EXPECT_THAT(make({{.begin = 4, .end = 6}, {.begin = 5, .end = 7}}),
              ThrowsMessage<UsageError>(HasSubstr("without overlaps")));
  EXPECT_THAT(make({{.begin = 8, .end = 12}}), ThrowsMessage<UsageError>(HasSubstr("12")));
}

}  // namespace
}  // namespace trireme::test

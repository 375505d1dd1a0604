// SPDX-License-Identifier: Apache-2.0
// Tables have what the graph has, in columns, whatever names are like.
#include <trireme/graph/show/table.h>

#include <trireme/base/error.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/show/names.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/show/graphs.h>

#include <sstream>
#include <string_view>

namespace trireme::test {
namespace {

using graph::Graph;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void expect_columns(const std::string& text) {
  for (const std::string& line : lines_of(text)) {
    EXPECT_LE(graph::detail::letters_in(line), 120U) << line;
    EXPECT_THAT(line, Not(EndsWith(" ")));
  }
}

TEST(ModuleTable, HasALineForEachModule) {
  constexpr std::string_view kTable = R"(
module       operators    parameters          FLOPs    in backward  results     kept
(outermost)          2             0   1.9 thousand   1.2 thousand  1.5 KiB      0 B
tail (mark)          3             0   2.8 thousand   1.3 thousand  1.5 KiB  3.1 KiB
conv                 1            84  20.7 thousand  41.5 thousand  1.5 KiB  1.5 KiB
norm                 2             6            788   1.2 thousand  1.5 KiB  1.5 KiB
head                 2  1.9 thousand   7.7 thousand  15.4 thousand     80 B      0 B
total               10  2.0 thousand  33.9 thousand  60.4 thousand  6.1 KiB  6.1 KiB
inputs take 1.5 KiB, of which 1.5 KiB are kept
)";
  EXPECT_EQ(graph::module_table(captured(residual()), {.depth = 1}), kTable.substr(1));
}

TEST(ModuleTable, NamesMarksInAModuleThatHasOneLine) {
  const std::vector<std::string> lines =
      lines_of(graph::module_table(captured(residual()), {.depth = 0}));
  EXPECT_THAT(lines.at(1), StartsWith("(outermost)         10"));
  EXPECT_EQ(lines.at(2), "tail (mark)");
  EXPECT_THAT(lines.at(3), StartsWith("total               10"));
}

TEST(ModuleTable, HasAColumnForStages) {
  const Graph graph = gpt_graph(2);
  const std::vector<graph::ModuleStage> stages = {{"token_embedding", 0}, {"blocks.1", 1}};
  const std::string table =
      graph::module_table(graph, {.depth = 1, .boundaries = graph::cut(graph, stages)});
  expect_columns(table);
  EXPECT_THAT(lines_of(table)[0], HasSubstr("stage  operators"));
  EXPECT_THAT(table, HasSubstr("blocks              0 to 1"));
}

// Of two modules that have one weight.
Graph graph_of_twins(const std::string& first, const std::string& second) {
  auto net = std::make_shared<torch::nn::Module>();
  at::Tensor weight = torch::ones({4, 4});
  for (const std::string& name : {first, second}) {
    auto part = std::make_shared<torch::nn::Module>();
    weight = part->register_parameter("weight", weight);
    net->register_module(name, part);
  }
  return captured({net,
                   [net](const Tensors& x) -> Tensors {
                     const at::Tensor parameter = net->parameters()[0];
                     return {torch::linear(torch::linear(x[0], parameter), parameter).sum()};
                   },
                   {torch::ones({2, 4})}});
}

TEST(ModuleTable, NamesParametersThatAreShared) {
  EXPECT_THAT(graph::module_table(gpt_graph()), Not(HasSubstr(" is ")));
  expect_columns(graph::module_table(graph_of_twins(std::string(200, 'a'), std::string(90, 'b'))));
  const std::string table = graph::module_table(graph_of_twins("first", "second"));
  EXPECT_THAT(table, EndsWith("second.weight is first.weight\n"));
  EXPECT_THAT(table, HasSubstr("total                3          16"));
}

TEST(Tables, StayReadableWithLongAndOddNames) {
  const std::size_t lines =
      lines_of(graph::module_table(graph_of_names("plain", "plain!"), {.depth = 3})).size();
  for (const std::string& name : {std::string(300, 'x'), std::string("line\nfeed\x01\x7f"),
                                  std::string(200, '"') + "层", std::string("naïve 层")}) {
    const Graph graph = graph_of_names(name, name + "!");
    const std::string modules = graph::module_table(graph, {.depth = 3});
    EXPECT_EQ(lines_of(modules).size(), lines) << "line feeds in names are none of the table";
    for (const std::string& table : {modules, graph::operator_table(graph)}) {
      expect_columns(table);
      EXPECT_THAT(table, Not(HasSubstr("\x01")));
      EXPECT_THAT(table, Not(HasSubstr("\x7f")));
    }
  }
  const Graph odd = graph_of_names("line\nfeed\x01\x7f", "m\n");
  EXPECT_THAT(graph::module_table(odd), HasSubstr("\nline?feed??  "));
  EXPECT_THAT(graph::operator_table(odd), HasSubstr(" line?feed??.weight Float [2, 2]"));
  EXPECT_THAT(graph::operator_table(odd), HasSubstr("\n-- mark m?\n"));
  const Graph whole = graph_of_names(std::string(300, 'x') + "end", "m");
  EXPECT_THAT(graph::module_table(whole), HasSubstr("\n…xxx"));
  EXPECT_THAT(graph::module_table(whole), HasSubstr("xxend  "));
  EXPECT_THAT(graph::operator_table(whole), HasSubstr("xxend.weight Float [2, 2]"));
}

TEST(ModuleTable, OfAGraphWithoutOperators) {
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors { return {x[0]}; },
                                {torch::ones({2})}});
  EXPECT_THAT(lines_of(graph::module_table(graph)).at(1), StartsWith("total"));
  EXPECT_THAT(lines_of(graph::operator_table(graph)).at(1), HasSubstr("total"));
}

TEST(OperatorTable, ListsWhatEachTakesAndGives) {
  constexpr std::string_view kTable = R"(
   operator                  module          FLOPs    in backward  results     kept
0  aten::conv2d              conv    20.7 thousand  41.5 thousand  1.5 KiB  1.5 KiB
           input 0 Float [2, 3, 8, 8], conv.weight Float [3, 3, 3, 3], conv.bias Float [3]
        -> %11 Float [2, 3, 8, 8]
1  aten::add_.Scalar         norm                2              0      0 B      0 B
           norm.num_batches_tracked Long []
        -> %12 Long [], norm.num_batches_tracked written to as %12
2  aten::batch_norm          norm              786   1.2 thousand  1.5 KiB  1.5 KiB
           %11 Float [2, 3, 8, 8], norm.weight Float [3], norm.bias Float [3], norm.running_mean Float [3],
           norm.running_var Float [3]
        -> %15 Float [2, 3, 8, 8], norm.running_mean written to as %13, norm.running_var written to as %14
3  aten::relu_                                 768   1.2 thousand      0 B      0 B
           %15 Float [2, 3, 8, 8]
        -> %16 Float [2, 3, 8, 8], %15 written to as %16
4  aten::add.Tensor                   1.2 thousand              0  1.5 KiB      0 B
           %16 Float [2, 3, 8, 8], input 0 Float [2, 3, 8, 8]
        -> %17 Float [2, 3, 8, 8]
-- mark tail
5  aten::dropout                      2.7 thousand   1.2 thousand  1.5 KiB  3.0 KiB
           %17 Float [2, 3, 8, 8]
        -> %18 Float [2, 3, 8, 8]
6  aten::flatten.using_ints                      0              0      0 B      0 B
           %18 Float [2, 3, 8, 8]
        -> %19 Float [2, 192]
7  aten::t                   head                0              0      0 B      0 B
           head.weight Float [10, 192]
        -> %20 Float [192, 10]
8  aten::addmm               head     7.7 thousand  15.4 thousand     80 B      0 B
           head.bias Float [10], %19 Float [2, 192], %20 Float [192, 10]
        -> %21 Float [2, 10]
9  aten::cross_entropy_loss                     64            104      4 B     84 B
           %21 Float [2, 10], input 1 Long [2]
        -> %22 Float []
   total                             33.9 thousand  60.4 thousand  6.1 KiB  6.1 KiB
inputs take 1.5 KiB, of which 1.5 KiB are kept
)";
  EXPECT_EQ(graph::operator_table(captured(residual())), kTable.substr(1));
}

TEST(OperatorTable, MarksWhereStagesBegin) {
  const Graph graph = gpt_graph(2);
  const std::vector<int> boundaries = graph::balance(graph, 2);
  const std::string table = graph::operator_table(graph, boundaries);
  const std::vector<std::string> lines = lines_of(table);
  EXPECT_EQ(lines[1], "-- stage 0");
  const auto second = std::ranges::find(lines, "-- stage 1");
  ASSERT_NE(second, lines.end());
  EXPECT_THAT(*(second + 1), HasSubstr(graph.node(boundaries[1]).name()));
  EXPECT_THAT(graph::operator_table(graph), Not(HasSubstr("stage")));
}

TEST(OperatorTable, WrapsWhatIsLong) {
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors {
                                  const std::vector<at::Tensor> all = x[0].unbind();
                                  return {torch::stack(all, 1).sum()};
                                },
                                {torch::ones({30, 3})}});
  const std::string table = graph::operator_table(graph);
  for (const std::string& line : lines_of(table)) EXPECT_LE(line.size(), 120U) << line;
  EXPECT_THAT(table, HasSubstr("Float [3],\n           %"));
  EXPECT_THAT(graph::operator_table(mixed_graph()), HasSubstr("steps written to as %"));
}

TEST(Tables, RefuseDepthsAndBoundariesThatAreNone) {
  const Graph graph = gpt_graph(1);
  EXPECT_THAT([&] { graph::module_table(graph, {.depth = -1}); },
              ThrowsMessage<UsageError>(HasSubstr("depth -1")));
  EXPECT_THAT([&] { graph::operator_table(graph, {0, 2}); },
              ThrowsMessage<UsageError>(HasSubstr("boundaries [0, 2]")));
}

}  // namespace
}  // namespace trireme::test

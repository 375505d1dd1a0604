// SPDX-License-Identifier: Apache-2.0
// What is written is read back the same, and what is no graph is refused with its place.
#include <trireme/graph/show/graph_text.h>

#include <trireme/base/error.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/guard.h>
#include <trireme/graph/show/picture.h>
#include <trireme/graph/show/table.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <tests/temporary_folder.h>
#include <tests/unit/graph/show/graphs.h>

#include <functional>
#include <limits>
#include <locale>
#include <sstream>

namespace trireme::test {
namespace {

using graph::Graph;
using graph::Node;
using graph::Value;
using graph::Write;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_same_value(const Value& expected, const Value& given) {
  EXPECT_EQ(expected.kind, given.kind);
  EXPECT_EQ(expected.name, given.name);
  EXPECT_EQ(expected.names, given.names);
  EXPECT_EQ(expected.sizes, given.sizes);
  EXPECT_EQ(expected.strides, given.strides);
  EXPECT_EQ(expected.dtype, given.dtype);
  EXPECT_EQ(expected.requires_grad, given.requires_grad);
  EXPECT_EQ(expected.node, given.node);
  EXPECT_EQ(expected.object, given.object);
  EXPECT_EQ(expected.memory, given.memory);
  EXPECT_EQ(expected.view_of, given.view_of);
  EXPECT_EQ(expected.is_saved, given.is_saved);
}

void expect_same_node(const Node& expected, const Node& given) {
  EXPECT_EQ(expected.op, given.op);
  EXPECT_EQ(expected.inputs, given.inputs);
  EXPECT_EQ(expected.outputs, given.outputs);
  EXPECT_TRUE(std::ranges::equal(expected.writes, given.writes, [](const Write& a, const Write& b) {
    return a.before == b.before && a.after == b.after;
  }));
  EXPECT_EQ(expected.module, given.module);
  EXPECT_EQ(expected.grad_mode, given.grad_mode);
  EXPECT_EQ(expected.autocast, given.autocast);
  EXPECT_EQ(expected.is_random, given.is_random);
  EXPECT_EQ(expected.flops, given.flops);
  EXPECT_EQ(expected.backward_flops, given.backward_flops);
  EXPECT_EQ(expected.bytes, given.bytes);
  EXPECT_EQ(expected.saved, given.saved);
  EXPECT_EQ(expected.saved_bytes, given.saved_bytes);
  ASSERT_EQ(expected.arguments.size(), given.arguments.size());
  for (std::size_t i = 0; i < expected.arguments.size(); ++i) {
    EXPECT_EQ(expected.arguments[i].tagKind(), given.arguments[i].tagKind())
        << expected.name() << " " << i;
  }
}

void expect_same_graph(const Graph& expected, const Graph& given) {
  ASSERT_EQ(expected.values.size(), given.values.size());
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_value(expected.values[i], given.values[i]);
  }
  ASSERT_EQ(expected.nodes.size(), given.nodes.size());
  for (std::size_t i = 0; i < expected.nodes.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_node(expected.nodes[i], given.nodes[i]);
  }
  EXPECT_EQ(graph::first_difference(expected, given), "");  // also of arguments, as text
  EXPECT_EQ(expected.inputs, given.inputs);
  EXPECT_EQ(expected.results, given.results);
  EXPECT_EQ(expected.parameters, given.parameters);
  EXPECT_EQ(expected.buffers, given.buffers);
  EXPECT_EQ(expected.marks, given.marks);
  ASSERT_EQ(expected.modules.size(), given.modules.size());
  for (std::size_t i = 0; i < expected.modules.size(); ++i) {
    EXPECT_EQ(expected.modules[i].path, given.modules[i].path);
    EXPECT_EQ(expected.modules[i].type, given.modules[i].type);
    EXPECT_EQ(expected.modules[i].is_training, given.modules[i].is_training);
  }
}

TEST(GraphText, IsReadBackTheSame) {
  for (const Graph& graph : {gpt_graph(), gpt_graph(1, false), captured(residual()), mixed_graph(),
                             graph_of_names("naïve \"module\"\\n", "a\nmark <&>\x01")}) {
    const std::string text = graph::to_text(graph);
    const Graph read = graph::parse_graph(text);
    expect_same_graph(graph, read);
    EXPECT_EQ(graph::to_text(read), text);
    EXPECT_FALSE(read.can_run);
  }
}

TEST(GraphText, KeepsNumbersThatJsonHasNot) {
  Graph graph = mixed_graph();
  const auto clamp = std::ranges::find_if(
      graph.nodes, [](const Node& node) { return node.name() == "aten::clamp"; });
  ASSERT_NE(clamp, graph.nodes.end());
  c10::List<bool> bools;
  bools.push_back(true);
  clamp->arguments[1] = std::vector<double>{0.1, -std::numeric_limits<double>::infinity()};
  clamp->arguments[2] = c10::complex<double>(1.5, std::numeric_limits<double>::quiet_NaN());
  graph.nodes[0].arguments[1] = bools;
  graph.nodes[0].arguments[2] = c10::Stream(c10::Stream::DEFAULT, c10::Device(at::kCPU));
  const Graph read = graph::parse_graph(graph::to_text(graph));
  const auto index = static_cast<std::size_t>(clamp - graph.nodes.begin());
  EXPECT_EQ(read.nodes[index].arguments[1].toDoubleVector(), clamp->arguments[1].toDoubleVector());
  EXPECT_EQ(read.nodes[index].arguments[2].toComplexDouble().real(), 1.5);
  EXPECT_TRUE(std::isnan(read.nodes[index].arguments[2].toComplexDouble().imag()));
  EXPECT_EQ(read.nodes[0].arguments[1].toBoolList(), bools);
  EXPECT_TRUE(read.nodes[0].arguments[2].isString()) << "of other kinds the text alone";
}

TEST(GraphText, IsCutBalancedAndShownWithoutTheModule) {
  const Graph graph = gpt_graph(3);
  const TemporaryFolder folder;
  const auto file = folder.path() / "graph.json";
  graph::write_graph(graph, file);
  const Graph read = graph::read_graph(file);
  const std::vector<int> boundaries = graph::balance(graph, 3);
  EXPECT_EQ(graph::balance(read, 3), boundaries);
  const std::vector<graph::ModuleStage> stages = {{"token_embedding", 0}, {"blocks.1", 1}};
  EXPECT_EQ(graph::cut(read, stages), graph::cut(graph, stages));
  EXPECT_EQ(graph::module_table(read, {.boundaries = boundaries}),
            graph::module_table(graph, {.boundaries = boundaries}));
  EXPECT_EQ(graph::operator_table(read), graph::operator_table(graph));
  EXPECT_EQ(graph::to_dot(read), graph::to_dot(graph));
  EXPECT_EQ(graph::to_svg(read), graph::to_svg(graph));
}

class Thousands : public std::numpunct<char> {
 protected:
  char do_thousands_sep() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

class OfPeople {
 public:
  OfPeople() : before_(std::locale::global(std::locale(std::locale(), new Thousands))) {}
  ~OfPeople() { std::locale::global(before_); }
  OfPeople(const OfPeople&) = delete;
  OfPeople& operator=(const OfPeople&) = delete;
  OfPeople(OfPeople&&) = delete;
  OfPeople& operator=(OfPeople&&) = delete;

 private:
  std::locale before_;
};

// Sizes had commas within them.
TEST(GraphText, IsTheSameWhateverTheLocale) {
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors {
                                  at::Tensor h = x[0];
                                  for (int i = 0; i < 1100; ++i) h = h.exp();
                                  return {h};
                                },
                                {torch::ones({1, 2000})}});
  const auto texts = [&graph] {
    return std::vector<std::string>{graph::to_text(graph), graph::to_dot(graph),
                                    graph::to_svg(graph), graph::module_table(graph),
                                    graph::operator_table(graph)};
  };
  const std::vector<std::string> expected = texts();
  const OfPeople locale;
  ASSERT_EQ((std::ostringstream() << 1000).str(), "1,000");
  EXPECT_EQ(texts(), expected);
  EXPECT_EQ(graph::to_text(graph::parse_graph(expected[0])), expected[0]);
}

TEST(GraphText, IsNotRun) {
  const Subject subject = residual();
  const auto read =
      std::make_shared<const Graph>(graph::parse_graph(graph::to_text(captured(subject))));
  EXPECT_THAT([&] { graph::Piece(read, 0, read->num_nodes(), *subject.module); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("was read from a file"), HasSubstr("capture the module"))));
}

TEST(GraphText, TellsWhatChangedSinceItWasWritten) {
  const Graph before = graph::parse_graph(graph::to_text(gpt_graph(1, false)));
  EXPECT_EQ(graph::first_difference(before, gpt_graph(1, false)), "");
  EXPECT_THAT(graph::first_difference(before, gpt_graph(2, false)), HasSubstr("other modules"));
}

// -- errors ------------------------------------------------------------------------------------

void expect_refused(const std::string& text, const testing::Matcher<const std::string&>& matcher) {
  EXPECT_THAT([&] { graph::parse_graph(text, "mine.json"); }, ThrowsMessage<DataError>(matcher));
}

TEST(GraphTextErrors, NameTheFileThatCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { graph::read_graph(folder.path() / "none.json"); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("none.json cannot be read"),
                                             HasSubstr("No such file"), HasSubstr("write_graph"))));
  EXPECT_THAT([&] { graph::read_graph(folder.path()); },
              ThrowsMessage<DataError>(HasSubstr(folder.path().string())));
  EXPECT_THAT([&] { graph::write_graph(gpt_graph(1), folder.path() / "no" / "graph.json"); },
              ThrowsMessage<DataError>(HasSubstr("graph.json")));
  write_file(folder.path() / "short.json", "{\"trireme-graph\": 1,\n\"modules\": [");
  EXPECT_THAT([&] { graph::read_graph(folder.path() / "short.json"); },
              ThrowsMessage<DataError>(HasSubstr("short.json:2:13: the text ends too early")));
}

TEST(GraphTextErrors, NameThePlaceOfWhatIsNoGraph) {
  expect_refused("", HasSubstr("mine.json:1:1: the text ends too early"));
  expect_refused("{\"trireme-graph\": 1,\n  nonsense}",
                 HasSubstr("mine.json:2:4: this is no JSON"));
  expect_refused("[1e999]", HasSubstr("mine.json: this is no JSON"));
  expect_refused("[]", AllOf(HasSubstr("no graph"), HasSubstr("'trireme-graph' is missing")));
  expect_refused(R"({"version": 1})", HasSubstr("'trireme-graph' is missing"));
  expect_refused(R"({"trireme-graph": 2})",
                 AllOf(HasSubstr("of format 2, expected 1"), HasSubstr("version of Trireme")));
  expect_refused(R"({"trireme-graph": 1})", HasSubstr("mine.json: 'modules' is missing"));
  EXPECT_THAT([] { graph::to_text(graph_of_names("linear", "\xff")); },
              ThrowsMessage<UsageError>(HasSubstr("valid UTF-8")));
}

struct Damage {
  std::function<void(json&)> damage;
  std::string place;
  std::string message;
};

TEST(GraphTextErrors, NameWhatDoesNotFit) {
  const json whole = json::parse(graph::to_text(captured(residual())));
  const std::vector<Damage> all = {
      {[](json& g) { g["nodes"] = 3; }, "mine.json: ", "nodes is 3, expected a list"},
      {[](json& g) { g["nodes"][1] = 3; }, "nodes[1]", "found 3, expected an object"},
      {[](json& g) { g["nodes"][1].erase("op"); }, "nodes[1]", "'op' is missing"},
      {[](json& g) { g["nodes"][1]["op"] = 7; }, "nodes[1]", "op is 7, expected a text"},
      {[](json& g) { g["nodes"][1]["op"] = "mine::twist.a"; }, "nodes[1]",
       "no operator mine::twist.a"},
      {[](json& g) { g["nodes"][1]["module"] = "elsewhere"; }, "nodes[1]", "no module 'elsewhere'"},
      {[](json& g) { g["nodes"][1]["inputs"].push_back(json::array()); }, "nodes[1]", "and aten::"},
      {[](json& g) { g["nodes"][1]["inputs"][0] = {9999}; }, "nodes[1]", "inputs is 9999"},
      {[](json& g) { g["nodes"][1]["outputs"] = {-2}; }, "nodes[1]", "outputs is -2, expected -1"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"ints", {"a"}}}; }, "nodes[0]",
       "ints is \"a\", expected a whole number"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"odd", 1}}; }, "nodes[0]",
       "no kind of argument 'odd'"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"device", "abacus"}}; }, "nodes[0]",
       "no device 'abacus'"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"double", "many"}}; }, "nodes[0]",
       "'many' is no number"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"complex", {1.0}}}; }, "nodes[0]",
       "two parts"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {1, 2}; }, "nodes[0]", "argument is a list"},
      {[](json& g) { g["nodes"][0]["arguments"][3] = {{"device", "cuda:300"}}; }, "nodes[0]",
       "no device 'cuda:300'"},
      {[](json& g) { g["nodes"][0]["autocast"] = 5; }, "nodes[0]", "autocast is 5"},
      {[](json& g) { g["nodes"][0]["writes"] = {{1}}; }, "nodes[0]", "two values"},
      {[](json& g) { g["nodes"][0]["flops"] = -1.0; }, "nodes[0]", "flops is -1"},
      {[](json& g) { g["nodes"][0]["bytes"] = 18446744073709551615U; }, "nodes[0]",
       "expected a whole number"},
      {[](json& g) { g["autocast"][0]["devices"].erase(0); }, "autocast[0]", "two devices"},
      {[](json& g) { g["values"][2]["kind"] = "tensor"; }, "values[2]", "no kind 'tensor'"},
      {[](json& g) { g["values"][2]["dtype"] = "Decimal"; }, "values[2]", "no dtype 'Decimal'"},
      {[](json& g) { g["values"][2]["sizes"] = {-3}; }, "values[2]", "none of a tensor"},
      {[](json& g) { g["values"][2]["sizes"] = {1 << 30, 1 << 30, 1 << 30}; }, "values[2]",
       "none of a tensor"},
      {[](json& g) { g["values"][2]["node"] = 99999; }, "values[2]", "node is 99999"},
      {[](json& g) { g["values"][2]["object"] = 3; }, "values[2]", "object is 3, expected 0 to 2"},
      {[](json& g) { g["values"][2]["view_of"] = 2; }, "values[2]", "view_of is 2"},
      {[](json& g) { g["values"][2].erase("names"); }, "values[2]", "have names"},
      {[](json& g) { g["values"][2]["names"] = {"no.such"}; }, "values[2]", "no module"},
      {[](json& g) { g["values"][2]["requires_grad"] = 1; }, "values[2]",
       "requires_grad is 1, expected true or false"},
      {[](json& g) { g["modules"][1]["path"] = "a.b"; }, "modules[1]", "'a.b' is out of place"},
      {[](json& g) { g["modules"] = json::array(); }, "mine.json: ", "no modules"},
      {[](json& g) { g["results"] = {-1}; }, "mine.json: ", "results is -1"},
      {[](json& g) { g["parameters"] = g["results"]; }, "mine.json: ", "is no parameter"},
      {[](json& g) { g["buffers"] = g["results"]; }, "mine.json: ", "is no buffer"},
      {[](json& g) { g["marks"][0]["node"] = 1000; }, "marks[0]", "node is 1000"},
      {[](json& g) { g["marks"][0]["node"] = 0.5; }, "marks[0]", "node is 0.5, expected a whole"},
  };
  for (const Damage& damage : all) {
    json damaged = whole;
    damage.damage(damaged);
    SCOPED_TRACE(damage.message);
    expect_refused(damaged.dump(), AllOf(HasSubstr(damage.place), HasSubstr(damage.message)));
  }
}

// Each number is in range, and what it points to is not what it can be: such files were accepted.
TEST(GraphTextErrors, NameWhatDoesNotFitTheRest) {
  const json whole = json::parse(graph::to_text(captured(residual())));
  const auto rename = [](json& value, const std::string& name) {
    value["name"] = name;
    value["names"] = {name};
  };
  static constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<Damage> all = {
      {[](json& g) { g["parameters"][1] = 0; }, "parameters", "0 is there twice"},
      {[](json& g) { g["parameters"].erase(0); }, "parameters", "parameter 0 is missing"},
      {[](json& g) { g["buffers"].erase(0); }, "buffers", "is missing"},
      {[](json& g) { g["inputs"][0] = 0; }, "inputs", "0 is no input"},
      {[](json& g) { g["nodes"][0]["inputs"][0] = {20}; }, "nodes[0]",
       "given value 20, which operator 7 makes"},
      {[](json& g) { g["nodes"][0]["inputs"][3] = {9}; }, "nodes[0]",
       "stride takes fewer tensors than 1"},
      {[](json& g) { g["nodes"][0]["inputs"][0] = {9, 9}; }, "nodes[0]",
       "input takes fewer tensors than 2"},
      {[](json& g) { g["nodes"][4]["outputs"] = {18}; }, "nodes[4]",
       "neither made nor was given its output 18"},
      {[](json& g) { g["nodes"][4]["outputs"] = json::array(); }, "values[17]",
       "operator 4 does not make it"},
      {[](json& g) { g["nodes"][3]["writes"] = {{11, 16}}; }, "nodes[3]",
       "writes to value 11, which it is not given"},
      {[](json& g) { g["nodes"][3]["writes"] = {{15, 17}}; }, "nodes[3]",
       "value 17 is not what 15 is after it"},
      {[](json& g) { g["nodes"][3].erase("writes"); }, "values[16]", "its object is another's"},
      {[](json& g) { g["values"][11].erase("is_saved"); }, "nodes[", "value 11 is not saved"},
      {[](json& g) { g["values"][11]["kind"] = "constant"; }, "values[11]", "results have a node"},
      {[](json& g) { g["values"][22]["node"] = 3; }, "values[22]", "behind results of later nodes"},
      {[](json& g) { g["values"][16]["memory"] = 11; }, "values[16]",
       "other memory than its object"},
      {[](json& g) { g["values"][19]["object"] = 18; }, "values[19]", "its object is another's"},
      {[](json& g) { g["values"][19]["view_of"] = 0; }, "values[19]", "a view of other memory"},
      {[](json& g) { g["values"][18]["memory"] = g["values"][18]["object"] = 17; }, "values[19]",
       "its memory is another's memory"},
      {[](json& g) {
         g["values"][15]["object"] = g["values"][15]["memory"] = g["values"][16]["memory"] = 11;
       },
       "values[16]", "its object has been written to before"},
      {[](json& g) { g["values"][10]["object"] = g["values"][10]["memory"] = 9; }, "values[10]",
       "only results are views"},
      {[](json& g) { g["values"][9]["name"] = ""; }, "values[9]", "its name is empty"},
      {[](json& g) { g["values"][1]["name"] = "other"; }, "values[1]", "not the first of its"},
      {[&](json& g) { rename(g["values"][1], "conv.weight"); }, "values[1]", "another's name"},
      {[&](json& g) { rename(g["values"][1], "conv."); }, "values[1]", "'conv.' is no name"},
      {[](json& g) { g["values"][0]["strides"][0] = -1; }, "values[0]", "none of a tensor"},
      {[](json& g) { g["modules"][1]["path"] = "."; }, "modules[1]", "'.' is out of place"},
      {[](json& g) { g["marks"].push_back(g["marks"][0]); }, "marks[1]",
       "another mark is called 'tail' as well"},
      {[](json& g) { g["marks"][0]["name"] = "head"; }, "marks[0]", "is called 'head' as well"},
      {[](json& g) { g["marks"][0]["name"] = ""; }, "marks[0]", "its name is empty"},
      {[](json& g) { g["marks"].push_back({{"name", "x"}, {"node", 2}, {"module", ""}}); },
       "marks[1]", "stands before the mark"},
      {[](json& g) { g["marks"][0]["value"] = 20; }, "marks[0]", "its value is made after it"},
      // Sums of such numbers overflowed.
      {[](json& g) { g["nodes"][0]["bytes"] = g["nodes"][1]["bytes"] = kMost; }, "nodes[0]",
       "bytes are more in all"},
      {[](json& g) { g["values"][9]["sizes"][0] = 1LL << 52; }, "values[9]",
       "bytes are more in all"},
      {[](json& g) { g["nodes"][0]["flops"] = g["nodes"][1]["flops"] = 1.7e308; }, "nodes[1]",
       "FLOPs are more"},
  };
  for (const Damage& damage : all) {
    json damaged = whole;
    damage.damage(damaged);
    SCOPED_TRACE(damage.message);
    expect_refused(damaged.dump(), AllOf(HasSubstr(damage.place), HasSubstr(damage.message)));
  }
}

TEST(GraphTextErrors, NameKeysThatAreThereTwice) {
  std::string text = graph::to_text(captured(residual()));
  text.insert(text.find("{\"op\":") + 1, "\"op\":\"aten::relu\",");
  expect_refused(text, HasSubstr("mine.json: nodes[0]: 'op' is there twice"));
  expect_refused(R"({"trireme-graph": 1, "nodes": [], "nodes": []})",
                 HasSubstr("mine.json: nodes: 'nodes' is there twice"));
}

// The parser looked through all values before at the end of each: four times as long for twice as
// many.
TEST(GraphTextErrors, NameOneOfManyThousandValues) {
  std::string text = R"({"trireme-graph": 1, "nodes": [)";
  for (int i = 0; i < 40'000; ++i) text += "{\"op\": \"aten::relu\"},";
  expect_refused(text + R"({"op": "a", "op": "b"}]})",
                 HasSubstr("mine.json: nodes[40000]: 'op' is there twice"));
  expect_refused(text + "{}]}", HasSubstr("is missing"));
}

// Messages had the text of what was wrong, and the stack was too small for that.
TEST(GraphTextErrors, RefuseWhatIsDeep) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string before : {R"({"trireme-graph": )", R"({"trireme-graph": 1, "modules": )",
                                   R"({"trireme-graph": 1, "modules": [)"}) {
    expect_refused(before + deep + (before.ends_with('[') ? "]}" : "}"),
                   HasSubstr("in each other, more than 16"));
  }
  expect_refused(R"({"trireme-graph": [1]})", HasSubstr("of format a list, expected 1"));
  expect_refused(R"({"trireme-graph": 1, "modules": {"a": 1}})",
                 HasSubstr("modules is an object, expected a list"));
}

TEST(GraphTextErrors, KnowEveryDtype) {
  const json whole = json::parse(graph::to_text(captured(residual())));
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const std::string name = c10::toString(static_cast<at::ScalarType>(i));
    json changed = whole;
    changed["values"][9]["dtype"] = name;
    try {
      EXPECT_GT(graph::parse_graph(changed.dump()).value(9).bytes(), 0) << name;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("there is no dtype '" + name));
    }
  }
}

// Whatever is in the file, it is read or refused.
TEST(GraphTextErrors, RefuseDamageWithoutHarm) {
  const std::string whole = graph::to_text(graph_of_names("linear", "here"));
  int refused = 0;
  const auto read = [&refused](const std::string& text) {
    try {
      const Graph graph = graph::parse_graph(text);
      graph::module_table(graph);
      graph::operator_table(graph);
      graph::to_dot(graph);
      graph::to_svg(graph);
      if (graph.num_nodes() > 0) graph::balance(graph, 1);
    } catch (const DataError&) {
      ++refused;
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    read(whole.substr(0, i));
    for (const char byte : {'0', '9', '-', '"', ']', ' ', 'x', '\xFF'}) {
      std::string damaged = whole;
      damaged[i] = byte;
      read(damaged);
    }
  }
  EXPECT_GT(refused, static_cast<int>(whole.size()));
}

}  // namespace
}  // namespace trireme::test

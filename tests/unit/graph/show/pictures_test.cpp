// SPDX-License-Identifier: Apache-2.0
// Pictures have what the graph has, and whatever names are like, they can be read.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/show/names.h>
#include <trireme/graph/show/picture.h>
#include <trireme/graph/show/pictures/drawing.h>
#include <trireme/graph/show/pictures/drawing_layout.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/show/graphs.h>

#include <regex>
#include <set>
#include <utility>

namespace trireme::test {
namespace {

using graph::Graph;
using graph::detail::Arrow;
using graph::detail::Box;
using graph::detail::BoxKind;
using graph::detail::Drawing;
using graph::detail::LaneEnd;
using graph::detail::LaneLine;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++number;
  }
  return number;
}

int box_called(const Drawing& drawing, const std::string& name) {
  const auto found = std::ranges::find_if(
      drawing.boxes, [&](const Box& box) { return box.lines.front() == name; });
  return found == drawing.boxes.end() ? -1 : static_cast<int>(found - drawing.boxes.begin());
}

const Arrow* arrow_between(const Drawing& drawing, const std::string& from, const std::string& to) {
  for (const Arrow& arrow : drawing.arrows) {
    if (arrow.from == box_called(drawing, from) && arrow.to == box_called(drawing, to)) {
      return &arrow;
    }
  }
  return nullptr;
}

int first_box(const LaneLine& line) {
  return std::min(line.from, std::ranges::min(line.to, {}, &LaneEnd::box).box);
}

int last_box(const LaneLine& line) {
  return std::max(line.from, std::ranges::max(line.to, {}, &LaneEnd::box).box);
}

TEST(Drawing, HasABoxForEachModuleAtItsDepthAndEachOperatorAbove) {
  const Graph graph = gpt_graph(2, false);
  const Drawing drawing = graph::detail::draw(graph, {.depth = 2});
  int operators = 0;
  for (const Box& box : drawing.boxes) operators += box.sums.operators;
  EXPECT_EQ(operators, graph.num_nodes());
  for (const char* module : {"blocks.0", "blocks.1"}) {
    const Box& box = drawing.boxes.at(static_cast<std::size_t>(box_called(drawing, module)));
    EXPECT_EQ(box.kind, BoxKind::kModule);
    EXPECT_EQ(box.frame, "blocks");
  }
  EXPECT_NE(arrow_between(drawing, "blocks.0", "blocks.1"), nullptr);
  EXPECT_EQ(drawing.boxes.front().kind, BoxKind::kInput);
  EXPECT_EQ(drawing.boxes.back().kind, BoxKind::kResult);
  const Drawing whole = graph::detail::draw(graph, {.depth = 0});
  EXPECT_EQ(whole.boxes.size(), 2U + 1 + 1) << "inputs, one box, the result";
  const Drawing all = graph::detail::draw(graph, {.depth = 99});
  EXPECT_EQ(std::ranges::count(all.boxes, BoxKind::kOperator, &Box::kind), graph.num_nodes());
}

// Every tensor that goes from box to box is on an arrow.
TEST(Drawing, LeavesNoTensorOut) {
  const Graph graph = captured(residual());
  const Drawing drawing = graph::detail::draw(graph, {.depth = 99, .all_tensors = true});
  std::size_t values = 0;
  for (const Arrow& arrow : drawing.arrows) values += arrow.values.size();
  std::size_t expected = graph.results.size();
  for (int node = 0; node < graph.num_nodes(); ++node) expected += graph.inputs_of(node).size();
  EXPECT_EQ(values, expected);
}

TEST(Drawing, ShowsConnectionsThatSkipBoxes) {
  const Drawing drawing = graph::detail::draw(captured(residual()), {.depth = 1});
  const Arrow* const around = arrow_between(drawing, "input 0", "aten::add.Tensor");
  ASSERT_NE(around, nullptr);
  EXPECT_EQ(around->values.size(), 1U);
  EXPECT_FALSE(around->is_skip) << "an input comes from outside";
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors {
                                  const at::Tensor a = x[0].sin();
                                  return {(a.cos().tan() + a).sum()};
                                },
                                {torch::ones({2})}});
  const Drawing chain = graph::detail::draw(graph, {.depth = 1});
  EXPECT_TRUE(arrow_between(chain, "aten::sin", "aten::add.Tensor")->is_skip);
  EXPECT_FALSE(arrow_between(chain, "aten::sin", "aten::cos")->is_skip);
  const Arrow& skip = *arrow_between(chain, "aten::sin", "aten::add.Tensor");
  const std::string ends = join_message("b", skip.from, " -> b", skip.to);
  EXPECT_THAT(graph::to_dot(graph, {.depth = 1}),
              HasSubstr(ends + " [label=\"Float [2]\" style=bold"));
  EXPECT_EQ(count(graph::to_dot(graph, {.depth = 1}), "style=bold color"), 1U);
  EXPECT_EQ(count(graph::to_svg(graph, {.depth = 1}), "class=\"line skip\""), 1U);
}

// It was drawn as one in SVGs alone.
TEST(Drawing, DoesNotTakeResultsForConnectionsThatSkipBoxes) {
  const Graph graph = captured({std::make_shared<torch::nn::Module>(),
                                [](const Tensors& x) -> Tensors {
                                  const at::Tensor a = x[0].sin();
                                  return {a, a.cos().tan()};
                                },
                                {torch::ones({2})}});
  EXPECT_FALSE(graph::detail::lay_out(graph::detail::draw(graph, {})).lane_lines.empty());
  EXPECT_THAT(graph::to_svg(graph), Not(HasSubstr("line skip")));
  EXPECT_THAT(graph::to_dot(graph), Not(HasSubstr("style=bold color")));
}

TEST(Drawing, ShowsParametersThatSeveralBoxesTake) {
  const Graph graph = gpt_graph(2, true);
  const Drawing drawing = graph::detail::draw(graph, {.depth = 2});
  const int shared = box_called(drawing, "token_embedding.weight");
  ASSERT_GE(shared, 0);
  EXPECT_EQ(std::ranges::count(drawing.arrows, shared, &Arrow::from), 2);
  EXPECT_EQ(box_called(graph::detail::draw(gpt_graph(2, false), {.depth = 1}), "head.weight"), -1)
      << "one box alone takes it";
  const Drawing all = graph::detail::draw(graph, {.depth = 2, .all_tensors = true});
  EXPECT_GE(box_called(all, "norm.weight"), 0);
}

TEST(Drawing, HasMarksBetweenBoxesAndWithinThem) {
  const Graph graph = captured(residual());
  const Drawing drawing = graph::detail::draw(graph, {.depth = 1});
  ASSERT_EQ(drawing.mark_labels.size(), 1U);
  EXPECT_EQ(drawing.mark_labels[0].name, "tail");
  EXPECT_EQ(drawing.mark_labels[0].before, box_called(drawing, "aten::dropout"));
  const Drawing whole = graph::detail::draw(graph, {.depth = 0});
  EXPECT_TRUE(whole.mark_labels.empty());
  const Box& box = whole.boxes.at(static_cast<std::size_t>(box_called(whole, "(outermost)")));
  EXPECT_THAT(box.lines, testing::Contains("mark tail"));
}

TEST(Layout, GivesLinesThatOverlapLanesOfTheirOwn) {
  const Graph graph = captured(residual());
  const Drawing drawing = graph::detail::draw(graph, {.depth = 99, .all_tensors = true});
  const graph::detail::Layout layout = graph::detail::lay_out(drawing);
  ASSERT_GT(layout.lane_lines.size(), 4U);
  for (const LaneLine& a : layout.lane_lines) {
    EXPECT_LT(a.lane, a.is_left ? layout.left_lanes : layout.right_lanes);
    for (const LaneLine& b : layout.lane_lines) {
      if (&a == &b || a.lane != b.lane || a.is_left != b.is_left) continue;
      const bool is_apart = last_box(a) < first_box(b) || last_box(b) < first_box(a);
      EXPECT_TRUE(is_apart) << a.from << " and " << b.from;
    }
  }
  for (std::size_t i = 1; i < layout.boxes.size(); ++i) {
    EXPECT_GT(layout.boxes[i].top, layout.boxes[i - 1].bottom);
  }
}

// -- Graphviz ----------------------------------------------------------------------------------

// What Graphviz's grammar asks for, as far as it is used here.
void expect_dot(const std::string& text) {
  const std::string string = R"("(?:[^"\\]|\\.)*")";
  const std::regex line(R"(\s*(?:digraph \{|subgraph cluster_\d+ \{|\}|label=)" + string +
                        R"(|(?:[bm]\d+(?: -> b\d+)?|node|edge|graph) \[(?: ?\w+=(?:\w+|)" + string +
                        R"())*\]))");
  std::set<std::string> boxes;
  const std::regex box(R"(\n\s*([bm]\d+) \[)");
  for (std::sregex_iterator found(text.begin(), text.end(), box); found != std::sregex_iterator();
       ++found) {
    EXPECT_TRUE(boxes.insert((*found)[1]).second) << (*found)[1];
  }
  const std::regex edge(R"(\n\s*([bm]\d+) -> (b\d+) \[)");
  for (std::sregex_iterator found(text.begin(), text.end(), edge); found != std::sregex_iterator();
       ++found) {
    EXPECT_TRUE(boxes.contains((*found)[1])) << (*found)[0];
    EXPECT_TRUE(boxes.contains((*found)[2])) << (*found)[0];
  }
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string one = text.substr(begin, end - begin);
    EXPECT_TRUE(std::regex_match(one, line)) << one;
    begin = end + 1;
  }
  EXPECT_EQ(count(text, "{\n"), count(text, "}\n"));
}

TEST(Dot, NestsModulesAndLabelsArrowsWithShapeAndDtype) {
  const std::string dot = graph::to_dot(gpt_graph(2, true), {.depth = 3});
  expect_dot(dot);
  EXPECT_THAT(dot, HasSubstr("label=\"blocks\"\n"));
  EXPECT_THAT(dot, HasSubstr("label=\"blocks.1\"\n"));
  EXPECT_THAT(dot, HasSubstr("label=\"blocks.1.attention\\n"));
  EXPECT_THAT(dot, HasSubstr("label=\"Float [2, 8, 16]\""));
  EXPECT_THAT(dot, HasSubstr("label=\"Long [2, 8]\""));
  EXPECT_THAT(dot, HasSubstr("label=\"token_embedding.weight\\n"));
  EXPECT_EQ(graph::to_dot(gpt_graph(2, true), {.depth = 3}), dot);
}

TEST(Dot, ColoursStages) {
  const Graph graph = gpt_graph(2);
  const std::vector<int> boundaries = graph::balance(graph, 2);
  const std::string dot = graph::to_dot(graph, {.depth = 2, .boundaries = boundaries});
  expect_dot(dot);
  EXPECT_THAT(dot, HasSubstr("stage 0\""));
  EXPECT_THAT(dot, HasSubstr("stage 1\""));
  EXPECT_THAT(graph::to_dot(graph, {.depth = 1, .boundaries = boundaries}),
              HasSubstr("stages 0 to 1\""));
  EXPECT_THAT(graph::to_dot(graph), Not(HasSubstr("stage")));
}

// -- SVG ---------------------------------------------------------------------------------------

// Elements are closed in order, and text has nothing in it that begins one.
void expect_xml(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const std::size_t end = text.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = text.substr(at + 1, end - at - 1);
    ASSERT_TRUE(std::regex_match(tag, std::regex(R"(/?[a-zA-Z]+(\s+[a-zA-Z:-]+="[^"<&]*")*\s*/?)")))
        << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find_first_of(" \n")));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_FALSE(std::regex_search(text, std::regex("&(?!lt;|gt;|amp;|quot;|#39;)")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_FALSE(std::regex_search(text, std::regex("[\\x01-\\x08\\x0b-\\x1f]")));
  EXPECT_THAT(text, Not(HasSubstr("\xEF\xBF\xBE")));
  EXPECT_THAT(text, Not(HasSubstr("\xEF\xBF\xBF")));
}

// No text reaches beyond the picture. Entities count as several letters, which is not too few.
void expect_inside(const std::string& svg) {
  constexpr double kLetter = 6.4;
  std::smatch whole;
  ASSERT_TRUE(std::regex_search(svg, whole, std::regex("<svg [^>]* width=\"([0-9.]+)\"")));
  const double width = parse_number<double>(whole[1].str()).value();
  const std::regex text("<text class=\"([a-z-]+)\" x=\"([0-9.]+)\"[^>]*>([^<]*)</text>");
  int texts = 0;
  for (std::sregex_iterator found(svg.begin(), svg.end(), text); found != std::sregex_iterator();
       ++found, ++texts) {
    const std::string name = (*found)[3];
    const bool is_centred = (*found)[1] == "name" || (*found)[1] == "line-of-box";
    const double reach = kLetter * static_cast<double>(graph::detail::letters_in(name));
    const double begin = parse_number<double>((*found)[2].str()).value();
    EXPECT_LE(begin + (is_centred ? reach / 2 : reach), width) << name;
    EXPECT_GE(is_centred ? begin - reach / 2 : begin, 0) << name;
  }
  EXPECT_GT(texts, 0);
}

TEST(Svg, HasBoxesFramesLanesMarksAndStages) {
  const Graph graph = gpt_graph(2, true);
  std::vector<int> boundaries = graph::balance(graph, 2);
  ++boundaries[1];  // into a box
  const std::string svg = graph::to_svg(graph, {.depth = 3, .boundaries = boundaries});
  expect_xml(svg);
  const Drawing drawing = graph::detail::draw(graph, {.depth = 3});
  EXPECT_EQ(count(svg, "<rect class=\"box"), drawing.boxes.size());
  // Programs other than browsers know no variables of CSS, and drew black on black.
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("var(")), HasSubstr(".box { fill: #f4f5f7;"),
                         HasSubstr("prefers-color-scheme: dark")));
  EXPECT_EQ(count(svg, "<rect class=\"frame\""), 7U)
      << "both embeddings, blocks, blocks.0, blocks.1, norm, and the embedding again";
  EXPECT_EQ(count(svg, "<rect class=\"band"), 3U) << "one box is in both stages";
  EXPECT_EQ(count(svg, ">stages 0 to 1</text>"), 2U) << "in the box and beside it";
  EXPECT_THAT(svg, HasSubstr(">stage 1</text>"));
  EXPECT_THAT(svg, HasSubstr("class=\"line skip\""));
  EXPECT_THAT(svg, HasSubstr("class=\"line held\"")) << "the shared embedding";
  EXPECT_THAT(svg, HasSubstr(">Float [2, 8, 16]</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>blocks.1</title>"));
  const std::string other = graph::to_svg(captured(residual()), {.depth = 1});
  EXPECT_THAT(other, HasSubstr(">mark tail</text>"));
  EXPECT_THAT(other, HasSubstr("<title>mark tail</title>"));
  EXPECT_THAT(other, HasSubstr("<title>%11 Float [2, 3, 8, 8], from conv</title>"));
}

// Such a box was drawn in its first stage alone.
TEST(Svg, SaysWhichStagesABoxIsIn) {
  const Graph graph = gpt_graph(2);
  const std::vector<graph::ModuleStage> stages = {{"token_embedding", 0}, {"blocks.1", 1}};
  const graph::PictureOptions options = {.depth = 1, .boundaries = graph::cut(graph, stages)};
  const Drawing drawing = graph::detail::draw(graph, options);
  const Box& box = drawing.boxes.at(static_cast<std::size_t>(box_called(drawing, "blocks")));
  EXPECT_THAT(box.lines, testing::Contains("stages 0 to 1"));
  const std::string svg = graph::to_svg(graph, options);
  EXPECT_EQ(count(svg, ">stages 0 to 1</text>"), 4U)
      << "in the boxes of the shared embedding and blocks, and beside both";
  EXPECT_EQ(count(svg, "<rect class=\"band"), 5U);
}

// Labels of straight lines, frames and marks were cut off.
TEST(Svg, IsWideEnoughForItsTexts) {
  const std::string name(40, 'x');
  torch::nn::Linear linear(2, 2);
  auto inner = std::make_shared<torch::nn::Module>();
  inner->register_module("linear", linear);
  auto net = std::make_shared<torch::nn::Module>();
  net->register_module(name, inner);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  at::Tensor h = mark(linear->forward(x[0]), name + " mark");
                                  const auto all = h.chunk(6);
                                  return {torch::cat(all).exp()};
                                },
                                {torch::ones({12, 2})}});
  for (const int depth : {0, 1, 2}) expect_inside(graph::to_svg(graph, {.depth = depth}));
  const Graph gpt = gpt_graph(2, true);
  for (const int depth : {0, 1, 2, 3}) {
    expect_inside(graph::to_svg(gpt, {.depth = depth, .boundaries = graph::balance(gpt, 2)}));
  }
}

// -- both --------------------------------------------------------------------------------------

TEST(Pictures, WriteNamesAsTheyAre) {
  for (const std::string name :
       {"\"quoted\"", "back\\slash\\", "<b>&amp;", "line\nfeed", "\x01\x7f", "naïve 层",
        "not utf-8 \xff\xfe", "{|}", "-> b1 [x=1]", "\xEF\xBF\xBE\xEF\xBF\xBF"}) {
    const Graph graph = graph_of_names(name, name + " mark");
    for (const int depth : {0, 1, 2}) {
      expect_dot(graph::to_dot(graph, {.depth = depth}));
      expect_xml(graph::to_svg(graph, {.depth = depth}));
    }
  }
  EXPECT_THAT(graph::to_dot(graph_of_names("a\\\"b", "m"), {.depth = 1}),
              HasSubstr("label=\"a\\\\\\\"b\\n"));
  EXPECT_THAT(graph::to_dot(graph_of_names("a&lt;b", "m"), {.depth = 1}),
              HasSubstr("label=\"a&amp;lt;b\\n"));
  const std::string path = std::string(60, '/') + "end";
  EXPECT_THAT(graph::to_svg(graph_of_names(path, "m"), {.depth = 1}), HasSubstr("/end</text>"));
  EXPECT_THAT(graph::to_svg(graph_of_names("a<b", "m"), {.depth = 1}), HasSubstr(">a&lt;b</text>"));
}

TEST(Pictures, OfLittleGraphs) {
  const Graph nothing = captured({std::make_shared<torch::nn::Module>(),
                                  [](const Tensors& x) -> Tensors { return {x[0]}; },
                                  {torch::ones({2})}});
  for (const int depth : {0, 3}) {
    expect_dot(graph::to_dot(nothing, {.depth = depth}));
    expect_xml(graph::to_svg(nothing, {.depth = depth}));
  }
  EXPECT_THAT(graph::to_dot(nothing), HasSubstr("b0 -> b1"));
  expect_dot(graph::to_dot(Graph()));
  expect_xml(graph::to_svg(Graph()));
}

TEST(Pictures, LeadBackWhereAModuleRunsAgain) {
  torch::nn::Linear block(4, 4);
  torch::nn::Linear other(4, 4);
  auto net = std::make_shared<torch::nn::Module>();
  net->register_module("block", block);
  net->register_module("other", other);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  const at::Tensor h = other->forward(block->forward(x[0]));
                                  return {mark(block->forward(h), "end").sum()};
                                },
                                {torch::ones({2, 4})}});
  const Drawing drawing = graph::detail::draw(graph, {.depth = 1});
  ASSERT_NE(arrow_between(drawing, "other", "block"), nullptr);
  EXPECT_TRUE(arrow_between(drawing, "other", "block")->is_skip);
  EXPECT_EQ(graph::detail::lay_out(drawing).left_lanes, 1);
  expect_xml(graph::to_svg(graph, {.depth = 1}));
}

TEST(Pictures, RefuseDepthsAndBoundariesThatAreNone) {
  const Graph graph = gpt_graph(1);
  EXPECT_THAT([&] { graph::to_dot(graph, {.depth = -2}); },
              ThrowsMessage<UsageError>(HasSubstr("depth -2")));
  EXPECT_THAT([&] { graph::to_svg(graph, {.boundaries = {0, 1}}); },
              ThrowsMessage<UsageError>(HasSubstr("boundaries [0, 1]")));
}

}  // namespace
}  // namespace trireme::test

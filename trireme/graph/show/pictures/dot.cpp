// SPDX-License-Identifier: Apache-2.0
// Writes a drawing in the language of Graphviz.
#include <trireme/graph/module_path.h>
#include <trireme/graph/show/names.h>
#include <trireme/graph/show/picture.h>
#include <trireme/graph/show/pictures/drawing.h>
#include <trireme/report/page/markup.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace trireme::graph {
namespace {

using detail::Arrow;
using detail::Box;
using detail::BoxKind;
using detail::plain_text;

// Light colours, so that black text is readable. They repeat if there are more stages.
constexpr std::array<std::string_view, 8> kStageColors = {
    "#cfe6fa", "#fbe3b5", "#c9ecdd", "#f3d0e3", "#e5dcf6", "#f8d3c8", "#e4e9b8", "#d5dbe3"};

// Returns a label of several lines whose characters have no special meaning. Backslashes and quotes
// are escaped, and so are ampersands, since Graphviz reads entities in labels. Control characters
// become question marks, and invalid UTF-8 becomes U+FFFD.
std::string label(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += '\n';
    for (const char letter : detail::printable(line)) {
      text += letter == '&' ? "&amp;" : std::string(1, letter);
    }
  }
  return report::json_text(text);
}

std::string_view shape_of(BoxKind kind) {
  switch (kind) {
    case BoxKind::kInput:
    case BoxKind::kResult:
      return "shape=ellipse style=filled";
    case BoxKind::kTensor:
      return "shape=note style=\"filled,dashed\"";
    case BoxKind::kModule:
      return "shape=box style=\"filled,bold\"";
    case BoxKind::kOperator:
      break;
  }
  return "shape=box style=\"filled,rounded\"";
}

class Writer {
 public:
  Writer(const Graph& graph, const PictureOptions& options)
      : graph_(graph), drawing_(detail::draw(graph, options)) {
    for (const Box& box : drawing_.boxes) add_frames(box.frame);
  }

  std::string text() {
    text_ =
        "digraph {\n"
        "  node [fontname=\"sans-serif\" fontsize=11 fillcolor=\"#f4f5f7\" color=\"#5b6470\"]\n"
        "  edge [fontname=\"sans-serif\" fontsize=9 color=\"#5b6470\"]\n"
        "  graph [fontname=\"sans-serif\" fontsize=11 color=\"#a3acb8\" style=rounded]\n";
    write_frame("", "  ");
    for (std::size_t i = 0; i < drawing_.mark_labels.size(); ++i) write_mark_label(i);
    for (const Arrow& arrow : drawing_.arrows) write_arrow(arrow);
    return text_ + "}\n";
  }

 private:
  // Adds a frame after the frames around it.
  void add_frames(const std::string& frame) {
    if (frame.empty() || std::ranges::find(frames_, frame) != frames_.end()) return;
    add_frames(detail::module_of(frame));
    frames_.push_back(frame);
  }

  void write_frame(const std::string& frame, const std::string& indent) {
    for (std::size_t i = 0; i < drawing_.boxes.size(); ++i) {
      if (drawing_.boxes[i].frame == frame) write_box(i, indent);
    }
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      if (detail::module_of(frames_[i]) != frame) continue;
      text_ += plain_text(indent, "subgraph cluster_", i, " {\n", indent,
                          "  label=", label({frames_[i]}), "\n");
      write_frame(frames_[i], indent + "  ");
      text_ += indent + "}\n";
    }
  }

  void write_box(std::size_t index, const std::string& indent) {
    const Box& box = drawing_.boxes[index];
    std::string color;
    if (const int stage = box.sums.first_stage; stage >= 0) {
      color = plain_text(" fillcolor=\"",
                         kStageColors[static_cast<std::size_t>(stage) % kStageColors.size()], "\"");
    }
    text_ += plain_text(indent, "b", index, " [", shape_of(box.kind), color,
                        " label=", label(box.lines), "]\n");
  }

  void write_mark_label(std::size_t index) {
    const detail::MarkLabel& mark = drawing_.mark_labels[index];
    text_ += plain_text("  m", index,
                        " [shape=plaintext style=\"\" label=", label({"mark " + mark.name}), "]\n");
    if (mark.before >= static_cast<int>(drawing_.boxes.size())) return;
    text_ += plain_text("  m", index, " -> b", mark.before, " [style=dotted arrowhead=none]\n");
  }

  void write_arrow(const Arrow& arrow) {
    std::vector<std::string> lines;
    for (const ValueId id : arrow.values) lines.push_back(detail::shape_of(graph_.value(id)));
    const BoxKind from = drawing_.boxes[static_cast<std::size_t>(arrow.from)].kind;
    std::string attributes = "label=" + label(lines);
    if (from == BoxKind::kTensor) attributes = "style=dashed";  // the box has dtype and shape
    if (arrow.is_skip) attributes += " style=bold color=\"#c2571a\"";
    text_ += plain_text("  b", arrow.from, " -> b", arrow.to, " [", attributes, "]\n");
  }

  const Graph& graph_;
  detail::Drawing drawing_;
  std::vector<std::string> frames_;  // outer ones first
  std::string text_;
};

}  // namespace

std::string to_dot(const Graph& graph, const PictureOptions& options) {
  return Writer(graph, options).text();
}

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// Draws a picture as SVG.
#include <trireme/base/text.h>
#include <trireme/graph/show/names.h>
#include <trireme/graph/show/picture.h>
#include <trireme/graph/show/pictures/drawing.h>
#include <trireme/graph/show/pictures/drawing_layout.h>
#include <trireme/report/number.h>
#include <trireme/report/page/markup.h>

#include <algorithm>
#include <string_view>

namespace trireme::graph {
namespace {

using detail::Box;
using detail::BoxKind;
using detail::plain_text;
using report::escaped;

constexpr double kLetter = 6.4;  // average width of a character
constexpr double kLane = 14;     // distance between lanes
constexpr double kInset = 14;    // distance between nested frames
constexpr std::size_t kMostLetters = 46;
constexpr int kNumStageStyles = 4;
// Styles of centred text.
constexpr std::string_view kNameStyle = "name";
constexpr std::string_view kLineStyle = "line-of-box";

// The colours are literal, because few programs other than browsers support CSS variables.
constexpr std::string_view kStyle = R"css(<style>
  svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  .back { fill: #ffffff; } text { fill: #1b1f24; font-size: 11px; }
  .name { font-weight: 600; } .name, .line-of-box { text-anchor: middle; } .soft { fill: #5b6470; }
  .box { fill: #f4f5f7; stroke: #7c8794; } .module { stroke-width: 2; } .tensor { stroke-dasharray: 4 3; }
  .frame { fill: none; stroke: #7c8794; stroke-opacity: 0.6; } .head { fill: #7c8794; }
  .line { fill: none; stroke: #7c8794; stroke-width: 1.3; } .skip { stroke: #c2571a; stroke-width: 1.8; }
  .held { stroke-dasharray: 4 3; } .mark { stroke: #c2571a; stroke-dasharray: 2 3; }
  .band { fill-opacity: 0.25; } .stage0 { fill: #6bb5ec; } .stage1 { fill: #f0b445; } .stage2 { fill: #5fc9a4; }
  .stage3 { fill: #d58bb8; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #1d2126; } text { fill: #e7eaee; } .soft { fill: #a3acb8; }
    .box { fill: #2a3037; stroke: #8b95a1; } .frame, .line { stroke: #8b95a1; } .head { fill: #8b95a1; }
    .skip, .mark { stroke: #f09352; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"
  markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="back" width="100%" height="100%"/>
)css";

std::string number(double value) { return report::rounded(value, 1); }

double width_of(const std::string& text) {
  return kLetter * static_cast<double>(std::min(detail::letters_in(text), kMostLetters));
}

std::string title(const std::string& text) { return "<title>" + escaped(text) + "</title>"; }

class Picture {
 public:
  Picture(const Graph& graph, const PictureOptions& options)
      : graph_(graph), drawing_(detail::draw(graph, options)), layout_(lay_out(drawing_)) {
    double label = 0;
    for (const Box& box : drawing_.boxes) {
      for (const std::string& line : box.lines) width_ = std::max(width_, width_of(line) + 20);
    }
    for (const detail::LaneLine& line : layout_.lane_lines) {
      if (!line.is_left) label = std::max(label, width_of(label_of(line.value)) + 10);
    }
    double stage = 0;
    for (const detail::Band& band : layout_.bands) {
      stage = std::max(stage, width_of(stages_of(band)) + 10);
    }
    left_ =
        detail::kPictureMargin + stage + kLane * layout_.left_lanes + kInset * (layout_.depth + 1);
    right_ = left_ + width_;
    lanes_ = right_ + std::max(label, kInset * (layout_.depth + 1));
    whole_ = lanes_ + kLane * layout_.right_lanes + detail::kPictureMargin;
  }

  std::string svg() {
    std::string all;
    for (const detail::Band& band : layout_.bands) all += drawn(band);
    for (const detail::Frame& frame : layout_.frames) all += drawn(frame);
    for (const detail::StraightLine& line : layout_.straight_lines) all += drawn(line);
    for (const detail::LaneLine& line : layout_.lane_lines) all += drawn(line);
    for (std::size_t i = 0; i < drawing_.boxes.size(); ++i) {
      all += drawn(drawing_.boxes[i], layout_.boxes[i]);
    }
    for (std::size_t i = 0; i < drawing_.mark_labels.size(); ++i) {
      all += drawn(drawing_.mark_labels[i], layout_.mark_labels[i]);
    }
    const std::string width = number(whole_);
    const std::string height = number(layout_.height);
    return plain_text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"",
                      height, "\" viewBox=\"0 0 ", width, " ", height, "\" role=\"img\">\n", kStyle,
                      all, "</svg>\n");
  }

 private:
  const Box& box(int index) const { return drawing_.boxes[static_cast<std::size_t>(index)]; }
  const detail::Extents& extents(int index) const {
    return layout_.boxes[static_cast<std::size_t>(index)];
  }
  std::string label_of(ValueId id) const { return detail::shape_of(graph_.value(id)); }
  std::string title_of(ValueId id) const {
    return detail::short_name(graph_, id) + " " + label_of(id);
  }
  static std::string stages_of(const detail::Band& band) {
    return (band.stages.find(' ') == std::string::npos ? "stage " : "stages ") + band.stages;
  }

  // Adds a text, and widens the picture if the text does not fit.
  std::string text_at(std::string_view style, double x, double y, const std::string& text) {
    const bool is_centred = style == kNameStyle || style == kLineStyle;
    const double width = width_of(text);
    whole_ = std::max(whole_, x + (is_centred ? width / 2 : width) + detail::kPictureMargin);
    return plain_text("<text class=\"", style, "\" x=\"", number(x), "\" y=\"", number(y), "\">",
                      escaped(detail::shortened(detail::printable(text), kMostLetters)),
                      "</text>\n");
  }

  std::string drawn(const detail::Band& band) {
    const detail::Extents& extents = band.extents;
    return plain_text("<rect class=\"band stage", band.first_stage % kNumStageStyles,
                      "\" x=\"0\" y=\"", number(extents.top), "\" width=\"100%\" height=\"",
                      number(extents.bottom - extents.top), "\"/>\n") +
           text_at("soft", 8, extents.top + 14, stages_of(band));
  }

  std::string drawn(const detail::Frame& frame) {
    const double inset = kInset * (layout_.depth - frame.depth);
    const detail::Extents& extents = frame.extents;
    return plain_text("<g>", title(frame.module), "<rect class=\"frame\" x=\"",
                      number(left_ - inset), "\" y=\"", number(extents.top), "\" width=\"",
                      number(width_ + 2 * inset), "\" height=\"",
                      number(extents.bottom - extents.top), "\" rx=\"6\"/>\n") +
           text_at("soft", left_ - inset + 6, extents.top + 13, frame.module) + "</g>\n";
  }

  std::string drawn(const detail::MarkLabel& mark, double y) {
    const std::string text = "mark " + mark.name;
    return plain_text("<g>", title(text), "<path class=\"line mark\" d=\"M", number(left_), " ",
                      number(y), "H", number(right_), "\"/>\n") +
           text_at("soft", left_ + 4, y - 3, text) + "</g>\n";
  }

  std::string drawn(const detail::StraightLine& line) {
    const double x = (left_ + right_) / 2;
    const double y = extents(line.from).bottom;
    const auto title_text = [this](ValueId id) { return title_of(id); };
    const auto label_text = [this](ValueId id) { return label_of(id); };
    return plain_text("<g>",
                      title(list_text(line.values, ", ", title_text) + ", from " +
                            box(line.from).lines[0]),
                      "<path class=\"line\" marker-end=\"url(#head)\" d=\"M", number(x), " ",
                      number(y), "V", number(extents(line.from + 1).top), "\"/>") +
           text_at("soft", x + 8, y + 14, list_text(line.values, ", ", label_text)) + "</g>\n";
  }

  std::string drawn(const detail::LaneLine& line) {
    const Box& from = box(line.from);
    const double x = line.is_left ? left_ : right_;
    const double lane = kLane * (line.lane + 0.5);
    const double lane_x =
        line.is_left ? left_ - kInset * (layout_.depth + 1) - lane : lanes_ + lane;
    std::string svg = "<g>" + title(title_of(line.value) + ", from " + from.lines[0]);
    for (const detail::LaneEnd& to : line.to) {
      const std::string_view style =
          from.kind == BoxKind::kTensor ? " held" : (to.is_skip ? " skip" : "");
      svg += plain_text("<path class=\"line", style, "\" marker-end=\"url(#head)\" d=\"M",
                        number(x), " ", number(line.start), "H", number(lane_x), "V",
                        number(extents(to.box).middle()), "H", number(x), "\"/>");
    }
    if (!line.is_left) svg += text_at("soft", x + 5, line.start - 2, label_of(line.value));
    return svg + "</g>\n";
  }

  std::string drawn(const Box& box, const detail::Extents& where) {
    const bool is_end = box.kind == BoxKind::kInput || box.kind == BoxKind::kResult;
    const double height = where.bottom - where.top;
    std::string all;
    for (const std::string& line : box.lines) {
      if (!all.empty()) all += '\n';
      all += line;
    }
    std::string svg = plain_text(
        "<g>", title(all), "<rect class=\"box",
        box.kind == BoxKind::kModule ? " module" : (box.kind == BoxKind::kTensor ? " tensor" : ""),
        "\" x=\"", number(left_), "\" y=\"", number(where.top), "\" width=\"", number(width_),
        "\" height=\"", number(height), "\" rx=\"", number(is_end ? height / 2 : 4), "\"/>\n");
    const double x = (left_ + right_) / 2;
    double y =
        where.middle() - detail::kTextLine * static_cast<double>(box.lines.size() - 1) / 2 + 4;
    for (std::size_t i = 0; i < box.lines.size(); ++i) {
      svg += text_at(i == 0 ? kNameStyle : kLineStyle, x, y, box.lines[i]);
      y += detail::kTextLine;
    }
    return svg + "</g>\n";
  }

  const Graph& graph_;
  detail::Drawing drawing_;
  detail::Layout layout_;
  double width_ = 120;  // width of the boxes
  double left_ = 0;     // left edge of the boxes
  double right_ = 0;    // right edge of the boxes
  double lanes_ = 0;    // left edge of the right lanes
  double whole_ = 0;    // width of the picture
};

}  // namespace

std::string to_svg(const Graph& graph, const PictureOptions& options) {
  return Picture(graph, options).svg();
}

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/pictures/drawing_layout.h>

#include <trireme/graph/module_path.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace trireme::graph::detail {
namespace {

constexpr double kHeading = 20;   // height of a frame's heading
constexpr double kFrameGap = 12;  // gap below the last box of a frame
constexpr double kPadding = 10;   // padding of a box
constexpr double kStartGap = 12;  // gap between lines that leave a box on one side

// Returns the frames around a box, the outermost first.
std::vector<std::string> frames_around(const Box& box) {
  std::vector<std::string> frames;
  for (std::string frame = box.frame; !frame.empty(); frame = module_of(frame)) {
    frames.insert(frames.begin(), frame);
  }
  return frames;
}

// Returns the first and the last box that a line passes, including its ends.
std::pair<int, int> span_of(const LaneLine& line) {
  const auto [low, high] = std::ranges::minmax(line.to, {}, &LaneEnd::box);
  return {std::min(low.box, line.from), std::max(high.box, line.from)};
}

class Maker {
 public:
  explicit Maker(const Drawing& drawing) : drawing_(drawing) {}

  Layout make() {
    find_lines();
    assign_lanes();
    place_boxes();
    place_starts();
    find_bands();
    return std::move(layout_);
  }

 private:
  BoxKind kind_of(int box) const { return drawing_.boxes[static_cast<std::size_t>(box)].kind; }

  void find_lines() {
    std::map<std::pair<bool, std::pair<int, ValueId>>, LaneLine> lines;
    for (const Arrow& arrow : drawing_.arrows) {
      const bool is_left = arrow.to < arrow.from || kind_of(arrow.from) == BoxKind::kTensor;
      StraightLine straight = {.from = arrow.from, .values = {}};
      for (const ValueId id : arrow.values) {
        if (!is_left && arrow.to == arrow.from + 1) {
          straight.values.push_back(id);
          continue;
        }
        LaneLine& line = lines[{is_left, {arrow.from, id}}];
        line.from = arrow.from;
        line.value = id;
        line.is_left = is_left;
        line.to.push_back({.box = arrow.to, .is_skip = arrow.is_skip});
      }
      if (!straight.values.empty()) layout_.straight_lines.push_back(std::move(straight));
    }
    for (auto& [key, line] : lines) layout_.lane_lines.push_back(std::move(line));
  }

  // Assigns lanes so that lines in one lane do not overlap. Short lines are nearest to the boxes.
  void assign_lanes() {
    std::vector<LaneLine*> order;
    for (LaneLine& line : layout_.lane_lines) order.push_back(&line);
    std::ranges::stable_sort(order, {}, [](const LaneLine* line) {
      const auto [low, high] = span_of(*line);
      return high - low;
    });
    std::map<std::pair<bool, int>, std::vector<std::pair<int, int>>> taken;  // by side and lane
    for (LaneLine* const line : order) {
      const std::pair<int, int> span = span_of(*line);
      const auto overlaps = [&span](const std::pair<int, int>& other) {
        return span.first <= other.second && other.first <= span.second;
      };
      while (std::ranges::any_of(taken[{line->is_left, line->lane}], overlaps)) ++line->lane;
      taken[{line->is_left, line->lane}].push_back(span);
      int& lanes = line->is_left ? layout_.left_lanes : layout_.right_lanes;
      lanes = std::max(lanes, line->lane + 1);
    }
  }

  std::ptrdiff_t num_starts(int box) const {
    const auto starts = [&](bool is_left) {
      return std::ranges::count_if(layout_.lane_lines, [&](const LaneLine& line) {
        return line.from == box && line.is_left == is_left;
      });
    };
    return std::max(starts(false), starts(true));
  }

  void place_boxes() {
    y_ = kPictureMargin;
    for (std::size_t i = 0; i < drawing_.boxes.size(); ++i) {
      const Box& box = drawing_.boxes[i];
      const std::vector<std::string> around = frames_around(box);
      const auto same = std::ranges::mismatch(open_, around).in2 - around.begin();
      close_frames(static_cast<std::size_t>(same));
      place_mark_labels(static_cast<int>(i));
      for (std::size_t k = open_.size(); k < around.size(); ++k) {
        open_.push_back(around[k]);
        open_frames_.push_back(layout_.frames.size());
        layout_.frames.push_back(
            {.module = around[k], .depth = static_cast<int>(k), .extents = {.top = y_}});
        y_ += kHeading;
      }
      layout_.depth = std::max(layout_.depth, static_cast<int>(open_.size()));
      const double starts = kStartGap * (static_cast<double>(num_starts(static_cast<int>(i))) + 1);
      const double text = kTextLine * static_cast<double>(box.lines.size()) + kPadding;
      layout_.boxes.push_back({.top = y_, .bottom = y_ + std::max(text, starts)});
      y_ = layout_.boxes.back().bottom + kBoxGap;
    }
    close_frames(0);
    place_mark_labels(static_cast<int>(drawing_.boxes.size()));
    layout_.height = y_ - kBoxGap + kPictureMargin;
  }

  void close_frames(std::size_t remaining) {
    while (open_.size() > remaining) {
      layout_.frames[open_frames_.back()].extents.bottom = y_ - kBoxGap + kFrameGap;
      open_.pop_back();
      open_frames_.pop_back();
      y_ += kFrameGap;
    }
  }

  void place_mark_labels(int before) {
    layout_.mark_labels.resize(drawing_.mark_labels.size());
    for (std::size_t i = 0; i < drawing_.mark_labels.size(); ++i) {
      if (drawing_.mark_labels[i].before != before) continue;
      layout_.mark_labels[i] = y_ - kBoxGap / 2 + kTextLine;
      y_ += kTextLine;
    }
  }

  void place_starts() {
    std::map<std::pair<bool, int>, int> starts;  // by side and box
    for (LaneLine& line : layout_.lane_lines) {
      const int number = ++starts[{line.is_left, line.from}];
      line.start = layout_.boxes[static_cast<std::size_t>(line.from)].top + kStartGap * number;
    }
  }

  void find_bands() {
    for (std::size_t i = 0; i < drawing_.boxes.size(); ++i) {
      const Sums& sums = drawing_.boxes[i].sums;
      if (sums.first_stage < 0) continue;
      const Extents extents = {.top = layout_.boxes[i].top - kBoxGap / 2,
                               .bottom = layout_.boxes[i].bottom + kBoxGap / 2};
      // A frame that ends between two boxes leaves no gap between their bands.
      if (!layout_.bands.empty()) layout_.bands.back().extents.bottom = extents.top;
      const std::string stages = stages_of(sums);
      if (layout_.bands.empty() || layout_.bands.back().stages != stages) {
        layout_.bands.push_back(
            {.first_stage = sums.first_stage, .stages = stages, .extents = extents});
      } else {
        layout_.bands.back().extents.bottom = extents.bottom;
      }
    }
  }

  const Drawing& drawing_;
  Layout layout_;
  double y_ = 0;
  std::vector<std::string> open_;  // modules of the frames that are not closed yet
  std::vector<std::size_t> open_frames_;
};

}  // namespace

Layout lay_out(const Drawing& drawing) { return Maker(drawing).make(); }

}  // namespace trireme::graph::detail

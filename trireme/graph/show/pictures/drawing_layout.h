// SPDX-License-Identifier: Apache-2.0
// Where the boxes and lines of a drawing lie where there is no Graphviz: boxes in one column, in
// the order in which they run, and what skips boxes in lanes to both sides.
//
//      left lanes: back, tensors     boxes     right lanes: ahead
//                  +-------------> [ input ]
//                  |               [ first ] ---------+
//                  |               [ second ]         |
//                  +-------------- [ third ] <--------+
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/show/pictures/drawing.h>

#include <string>
#include <vector>

namespace trireme::graph::detail {

/// Of a picture, in its pixels.
struct Extents {
  double top = 0;
  double bottom = 0;

  double middle() const { return (top + bottom) / 2; }
};

/// From a box to the next one.
struct StraightLine {
  int from = 0;
  std::vector<ValueId> values;
};

struct LaneEnd {
  int box = 0;
  bool is_skip = false;  ///< past other boxes that run between
};

/// A value on its way to all boxes that take it and are not the next one, in a lane.
struct LaneLine {
  int from = 0;
  std::vector<LaneEnd> to;
  ValueId value = kNoValue;
  bool is_left = false;  ///< leads back, or is a tensor of the module
  int lane = 0;          ///< from the boxes outwards
  double start = 0;      ///< its height where it leaves its box
};

/// Around boxes of one module that follow each other.
struct Frame {
  std::string module;
  int depth = 0;  ///< in how many others it is
  Extents extents;
};

/// Boxes that follow each other in the same stage, or in the same several ones.
struct Band {
  int first_stage = 0;
  std::string stages;  ///< `1`, `0 to 1`
  Extents extents;
};

struct Layout {
  std::vector<Extents> boxes;
  std::vector<double> mark_labels;  ///< heights
  std::vector<StraightLine> straight_lines;
  std::vector<LaneLine> lane_lines;
  std::vector<Frame> frames;
  std::vector<Band> bands;
  int left_lanes = 0;
  int right_lanes = 0;
  int depth = 0;  ///< of frames in each other
  double height = 0;
};

/// Heights of things.
inline constexpr double kTextLine = 15;
inline constexpr double kBoxGap = 30;
inline constexpr double kPictureMargin = 20;

Layout lay_out(const Drawing& drawing);

}  // namespace trireme::graph::detail

// SPDX-License-Identifier: Apache-2.0
// Places the boxes and lines of a drawing without Graphviz. Boxes are in one column in the order in
// which they run. Lines that skip boxes are in lanes on both sides.
//
//      left lanes: back, tensors     boxes     right lanes: forward
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

/// A vertical range in pixels.
struct Extents {
  double top = 0;
  double bottom = 0;

  double middle() const { return (top + bottom) / 2; }
};

/// A line from a box to the next one.
struct StraightLine {
  int from = 0;
  std::vector<ValueId> values;
};

/// Where a lane line ends.
struct LaneEnd {
  int box = 0;
  bool is_skip = false;  ///< passes other boxes that run in between
};

/// A line in a lane for one value, from its box to all boxes that use it except the next one.
struct LaneLine {
  int from = 0;
  std::vector<LaneEnd> to;
  ValueId value = kNoValue;
  bool is_left = false;  ///< leads back, or starts at a tensor of the module
  int lane = 0;          ///< counted from the boxes outwards
  double start = 0;      ///< height at which it leaves its box
};

/// A frame around consecutive boxes of one module.
struct Frame {
  std::string module;
  int depth = 0;  ///< number of frames around it
  Extents extents;
};

/// A band behind consecutive boxes of the same stage or stages.
struct Band {
  int first_stage = 0;
  std::string stages;  ///< such as `1` or `0 to 1`
  Extents extents;
};

/// The positions of everything in a picture.
struct Layout {
  std::vector<Extents> boxes;
  std::vector<double> mark_labels;  ///< heights
  std::vector<StraightLine> straight_lines;
  std::vector<LaneLine> lane_lines;
  std::vector<Frame> frames;
  std::vector<Band> bands;
  int left_lanes = 0;
  int right_lanes = 0;
  int depth = 0;  ///< greatest number of nested frames
  double height = 0;
};

/// Heights and gaps in pixels.
inline constexpr double kTextLine = 15;
inline constexpr double kBoxGap = 30;
inline constexpr double kPictureMargin = 20;

Layout lay_out(const Drawing& drawing);

}  // namespace trireme::graph::detail

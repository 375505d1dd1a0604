// SPDX-License-Identifier: Apache-2.0
// The content of a picture of a graph, independent of the output format: boxes, and arrows between
// them.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/show/aggregate.h>
#include <trireme/graph/show/picture.h>

#include <string>
#include <vector>

namespace trireme::graph::detail {

/// What a box stands for.
enum class BoxKind { kInput, kTensor, kModule, kOperator, kResult };

struct Box {
  BoxKind kind = BoxKind::kOperator;
  /// The module whose frame the box is in; for the box of a module its parent.
  std::string frame = {};
  /// The lines of text; the first one is the name.
  std::vector<std::string> lines = {};
  Sums sums = {};
};

/// Tensors that go from one box to another.
struct Arrow {
  int from = 0;
  int to = 0;
  std::vector<ValueId> values;
  bool is_skip = false;  ///< passes other boxes that run in between
};

/// The label of a mark between two boxes.
struct MarkLabel {
  std::string name;
  int before = 0;  ///< index of the box that follows
};

struct Drawing {
  /// Inputs, then tensors, then modules and operators in the order in which they first run, and
  /// then results.
  std::vector<Box> boxes;
  /// Ordered by the box where they start, and then by the box where they end.
  std::vector<Arrow> arrows;
  std::vector<MarkLabel> mark_labels;
};

/// Returns the drawing of a graph. Throws UsageError for a depth below 0 and for invalid
/// boundaries.
Drawing draw(const Graph& graph, const PictureOptions& options);

}  // namespace trireme::graph::detail

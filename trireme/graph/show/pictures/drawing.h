// SPDX-License-Identifier: Apache-2.0
// What is in a picture of a graph, wherever it is drawn: boxes, and arrows between them.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/show/aggregate.h>
#include <trireme/graph/show/pictures/picture.h>

#include <string>
#include <vector>

namespace trireme::graph::detail {

enum class BoxKind { kInput, kTensor, kModule, kOperator, kResult };

struct Box {
  BoxKind kind = BoxKind::kOperator;
  /// The frame that it is in: for a module's box the module above it.
  std::string frame = {};
  /// The first is its name.
  std::vector<std::string> lines = {};
  Sums sums = {};
};

/// Tensors that go from one box to another.
struct Arrow {
  int from = 0;
  int to = 0;
  std::vector<ValueId> values;
  bool is_skip = false;  ///< past other boxes that run between them
};

/// A mark between two boxes.
struct MarkLabel {
  std::string name;
  int before = 0;  ///< the box, in the order in which they are
};

struct Drawing {
  /// Inputs, then tensors, then modules and operators in the order in which they first run, then
  /// results.
  std::vector<Box> boxes;
  /// By box of origin, then by the box that they lead to.
  std::vector<Arrow> arrows;
  std::vector<MarkLabel> mark_labels;
};

Drawing draw(const Graph& graph, const PictureOptions& options);

}  // namespace trireme::graph::detail

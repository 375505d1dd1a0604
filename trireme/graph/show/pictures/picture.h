// SPDX-License-Identifier: Apache-2.0
// A graph as a picture: boxes for modules and operators, arrows for tensors.
#pragma once

#include <trireme/graph/graph.h>

#include <string>
#include <vector>

namespace trireme::graph {

struct PictureOptions {
  /// Modules whose paths have this many names are one box each; those above are frames around
  /// their modules and the operators of their own code. 0 is one box for all.
  int depth = 2;
  /// Of stages, as cut, balance and TrainingStep::boundaries give them.
  std::vector<int> boundaries = {};
  /// Draws all parameters, buffers and constants, and not only those that several boxes take.
  bool all_tensors = false;
};

/// Returns the graph in the language of Graphviz (`dot -Tsvg`). Every tensor that goes from one box
/// to another has its dtype and shape on the arrow; of a tensor that has a box they stand there.
/// Connections that skip boxes are thick. Modules are clusters, stages have colours. The same graph
/// gives the same text. Throws UsageError for a depth below 0 and boundaries that are none.
std::string to_dot(const Graph& graph, const PictureOptions& options = {});

/// Returns an SVG that needs nothing beside itself, light or dark by the reader's preference: boxes
/// one below the other in the order in which they run, connections that skip boxes to the right,
/// those that lead back and tensors that several boxes take to the left, stages as bands. Texts of
/// more than 46 letters lose their beginning; whole they stand in the titles of boxes, frames,
/// marks and lines, which also name the tensors of lines and where these come from. For up to some
/// hundred boxes: choose `depth` so. Throws as to_dot.
std::string to_svg(const Graph& graph, const PictureOptions& options = {});

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// Pictures of a graph: boxes for modules and operators, arrows for tensors.
#pragma once

#include <trireme/graph/graph.h>

#include <string>
#include <vector>

namespace trireme::graph {

/// Options of to_dot and to_svg.
struct PictureOptions {
  /// Modules with this many names in their path are one box each. Modules above them are frames
  /// around their modules and the operators of their own code. 0 gives a single box.
  int depth = 2;
  /// Boundaries of stages, as cut, balance and TrainingStep::boundaries return them.
  std::vector<int> boundaries = {};
  /// Draws all parameters, buffers and constants instead of only those that several boxes use.
  bool all_tensors = false;
};

/// Returns the graph in the language of Graphviz (`dot -Tsvg`). An arrow shows the dtype and shape
/// of each tensor on it; a tensor with a box of its own has them there. Connections that skip boxes
/// are thick. Modules are clusters and stages have colours. The same graph gives the same text.
/// Throws UsageError for a depth below 0 and for invalid boundaries.
std::string to_dot(const Graph& graph, const PictureOptions& options = {});

/// Returns the graph as a self-contained SVG, light or dark according to the reader's preference.
///
/// Boxes are one below the other in the order in which they run. Connections that skip boxes are on
/// the right. Connections that lead back, and tensors that several boxes use, are on the left.
/// Stages are bands. Texts of more than 46 characters lose their beginning; titles have the whole
/// texts, and also name the tensors of lines and where they come from. Choose `depth` so that there
/// are at most some hundred boxes. Throws as to_dot.
std::string to_svg(const Graph& graph, const PictureOptions& options = {});

}  // namespace trireme::graph

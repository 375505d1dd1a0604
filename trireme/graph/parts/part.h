// SPDX-License-Identifier: Apache-2.0
// Operators of a piece that are run as one, so that what they compute need not be kept for
// backward.
#pragma once

#include <trireme/graph/graph.h>

#include <vector>

namespace trireme::graph {

/// Operators from one boundary to another.
struct Part {
  int begin = 0;
  int end = 0;                ///< operators begin to end - 1
  std::vector<Part> parts{};  ///< within it, in order

  bool operator==(const Part&) const = default;
};

/// For each boundary from `begin` to `end` whether a part of a piece between them may begin or end
/// there. Operators from the one that makes memory to the last that writes to it stay together: a
/// second run of some of them would find what others wrote. Parameters and buffers are the
/// exception, since a second run is given their contents as they were.
std::vector<bool> part_boundaries(const Graph& graph, int begin, int end);

}  // namespace trireme::graph

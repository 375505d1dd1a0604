// SPDX-License-Identifier: Apache-2.0
// Part: operators of a piece that are recomputed together, so that their results need not be kept
// for backward.
#pragma once

#include <trireme/graph/graph.h>

#include <vector>

namespace trireme::graph {

/// The operators between two boundaries.
struct Part {
  int begin = 0;              ///< the first operator
  int end = 0;                ///< the part has the operators begin to end - 1
  std::vector<Part> parts{};  ///< parts within it, in order

  bool operator==(const Part&) const = default;
};

/// Returns for each boundary from `begin` to `end` if a part of the piece may begin or end there.
/// Operators from the one that allocates memory to the last one that writes to it must stay
/// together: a recomputation of some of them would read what the others wrote. Parameters and
/// buffers are an exception, since a recomputation gets their former contents.
std::vector<bool> part_boundaries(const Graph& graph, int begin, int end);

}  // namespace trireme::graph

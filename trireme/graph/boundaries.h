// SPDX-License-Identifier: Apache-2.0
// Where a graph can be cut in two, why it cannot be cut elsewhere, and what crosses a cut. Boundary
// i lies before operator i.
#pragma once

#include <trireme/graph/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::graph {

/// Returns for each value the last operator that reads it or writes to it. The entry is the number
/// of operators if forward returns the value, and -1 if nothing uses it.
std::vector<int> last_uses(const Graph& graph);

/// Returns why a graph cannot be cut at a boundary, in words that name the tensors; empty if it
/// can.
///
/// A tensor that crosses a boundary is another tensor on the other side. If two tensors share
/// memory and are both needed after the boundary, neither may therefore be written to after it. A
/// buffer must not be written to on both sides.
std::string reason_against_cut(const Graph& graph, int boundary);

/// Returns the reasons for all boundaries, from 0 to the number of operators.
std::vector<std::string> reasons_against_cuts(const Graph& graph);

/// Returns for each boundary the bytes of values that operators before it make and that operators
/// after it, or the results, need.
std::vector<std::int64_t> bytes_across(const Graph& graph);

}  // namespace trireme::graph

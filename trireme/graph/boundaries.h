// SPDX-License-Identifier: Apache-2.0
// Where a graph can be cut in two: what lies before and after a boundary, and why it may not be.
// Boundary i lies before operator i.
#pragma once

#include <trireme/graph/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::graph {

/// For each value the operator that uses it last, as an input or to write to it; the number of
/// operators where it is a result, and -1 where nothing uses it.
std::vector<int> last_uses(const Graph& graph);

/// What cannot be handed over at a boundary, in words that name the tensors; empty where a cut is
/// possible. A tensor that is handed over is another tensor on the other side: where two that share
/// memory are needed there, neither may be written to afterwards, and a buffer may not be written
/// to on both sides.
std::string reason_against_cut(const Graph& graph, int boundary);

/// The same for all boundaries, 0 and the number of operators included.
std::vector<std::string> reasons_against_cuts(const Graph& graph);

/// The bytes of what operators before a boundary make and operators after it or results need.
std::vector<std::int64_t> bytes_across(const Graph& graph);

}  // namespace trireme::graph

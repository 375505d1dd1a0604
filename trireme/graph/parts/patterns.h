// SPDX-License-Identifier: Apache-2.0
// Parts of a graph that are given by names of modules and operators.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>

#include <span>
#include <string>
#include <vector>

namespace trireme::graph {

/// Returns the parts of a piece that patterns name. In a pattern `*` stands for any characters,
/// including dots, `?` for one character, and `[ab]` for one of several:
///
/// - `blocks.*` matches modules by their paths. Each outermost module that matches is one part.
///   Matching modules within it are no parts of their own, unless another pattern names them:
///   `blocks.*` and `blocks.*.attention` make parts within parts. `*` matches the whole module.
/// - `aten::gelu`, with `::`, matches operators, with overload (`aten::add.Tensor`) or without.
///   Consecutive operators are one part. If the next operator keeps their result for backward, it
///   belongs to the part too: its input is recomputed instead of kept.
///
/// A part begins and ends where part_boundaries allows, so it may be larger than what is named.
/// Overlapping parts are joined. Operators that keep nothing for backward, and whose results no
/// later operator keeps, are left out.
///
/// @param begin,end boundaries of the piece.
/// @param patterns the patterns, in any order.
std::vector<Part> parts_of(const Graph& graph, int begin, int end,
                           std::span<const std::string> patterns);

/// Throws UsageError for a pattern that matches no operator of the graph, and no module that has
/// operators of its own. The error suggests similar names.
void check_patterns(const Graph& graph, std::span<const std::string> patterns);

}  // namespace trireme::graph

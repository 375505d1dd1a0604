// SPDX-License-Identifier: Apache-2.0
// Parts of a graph by the names of modules and operators.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>

#include <span>
#include <string>
#include <vector>

namespace trireme::graph {

/// The parts of a piece that patterns name, with `*` for any characters, dots included, `?` for
/// one, and `[ab]` for one of several:
///
/// - `blocks.*`: modules by their paths. The outermost that fit are one part each, and what fits
///   within them is no part of its own, unless by another pattern: `blocks.*` and
///   `blocks.*.attention` make parts within parts. `*` fits the whole module.
/// - `aten::gelu`, with `::`: operators, with overload (`aten::add.Tensor`) or without. Those that
///   follow each other are one part. Where the next one keeps a result of theirs for backward, it
///   belongs to the part too: its input is computed again, and not it.
///
/// A part begins and ends where it may (part_boundaries), and so may be larger; parts that overlap
/// become one. Operators that keep nothing for backward, and whose results nothing after them
/// keeps, are left out.
/// @param begin,end boundaries of the piece.
std::vector<Part> parts_of(const Graph& graph, int begin, int end,
                           std::span<const std::string> patterns);

/// Throws UsageError for a pattern that fits no operator of the graph and no module that has
/// operators of its own, with near names.
void check_patterns(const Graph& graph, std::span<const std::string> patterns);

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// What writer and reader of graphs agree on: docs/formats/graph.md.
#pragma once

#include <trireme/graph/graph.h>

#include <array>
#include <string_view>

namespace trireme::graph::detail {

/// Its value is the number of the format.
inline constexpr auto kFormatKey = "trireme-graph";
inline constexpr int kFormat = 1;

/// In the order of ValueKind.
inline constexpr std::array<std::string_view, 5> kKindNames = {"input", "parameter", "buffer",
                                                               "constant", "result"};

/// What to do about a file that is no graph.
inline constexpr std::string_view kDamagedHint =
    "the file is damaged or was edited; name one that write_graph made";

/// Checks that the parts of a graph fit each other as those of a captured one do: what operators
/// take is there before them, each tensor and its memory have one beginning, lists hold what they
/// are of, names are there once, and sums of bytes and FLOPs can be counted. Numbers of values and
/// operators have to be in range, sizes those of tensors. Throws DataError with `source` and place.
void check_graph(const Graph& graph, std::string_view source);

}  // namespace trireme::graph::detail

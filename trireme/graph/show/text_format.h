// SPDX-License-Identifier: Apache-2.0
// The parts of the file format that the writer and the reader of graphs share:
// docs/formats/graph.md.
#pragma once

#include <trireme/graph/graph.h>

#include <array>
#include <string_view>

namespace trireme::graph::detail {

/// The key whose value is the number of the format.
inline constexpr auto kFormatKey = "trireme-graph";
/// The number of the format.
inline constexpr int kFormat = 1;

inline constexpr std::array<std::string_view, 5> kKindNames = {"input", "parameter", "buffer",
                                                               "constant", "result"};

/// The hint of errors about a file that is no graph.
inline constexpr std::string_view kDamagedHint =
    "the file is damaged or was edited; name one that write_graph made";

/// Checks that a graph is as consistent as a captured one. Operators use values that exist before
/// them. Each tensor and each memory has one first value. Lists have values of the right kind,
/// names are unique, and sums of bytes and FLOPs do not overflow. Indices must be in range and
/// sizes valid when it is called. Throws DataError with `source` and place.
void check_graph(const Graph& graph, std::string_view source);

}  // namespace trireme::graph::detail

// SPDX-License-Identifier: Apache-2.0
// Estimates what a piece keeps for backward, and what recomputing parts of it saves, from the graph
// alone.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/choose.h>
#include <trireme/graph/parts/part.h>

#include <cstdint>
#include <vector>

namespace trireme::graph {

/// Bytes and costs of a piece with parts that are recomputed.
struct KeptBytes {
  /// Bytes kept from the end of forward on: tensors from other pieces, and memory of forward that
  /// backward, or the recomputation of parts, reads. Inputs of the graph, parameters and buffers do
  /// not count.
  std::int64_t kept = 0;
  /// The most bytes in backward at the end of a recomputation: what the part keeps, and what the
  /// operators before it keep. 0 without parts. Gradients do not count.
  std::int64_t rebuilding = 0;
  /// Cost of what is recomputed.
  RecomputeCost cost{};
};

/// Returns the bytes for operators `begin` to `end - 1` with these parts. Tensors that LibTorch
/// saves and backward never reads are not in the graph, and do not count.
KeptBytes kept_bytes(const Graph& graph, int begin, int end, const std::vector<Part>& parts);

/// Returns the most bytes beside `kept` that the weight part of a backward in two parts reads. For
/// each operator that has a parameter these are the tensors that it keeps and its gradient.
std::int64_t bytes_for_weights(const Graph& graph, int begin, int end);

/// A piece as units to choose from (choose.h). A unit has one operator, or a few that must stay
/// together. A buffer that one unit of a range reads and another one writes to counts for both,
/// although a recomputation has one copy of it.
struct PieceLine {
  Line line{};
  std::vector<int> boundaries{};  ///< unit i has the operators from boundary i to i + 1

  std::vector<Part> parts_of(const std::vector<UnitRange>& ranges) const;
};
/// Returns the units of operators `begin` to `end - 1`.
PieceLine line_of(const Graph& graph, int begin, int end);

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// What a piece keeps for backward, and what is to be gained by running parts of it again: from its
// record alone.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/choose.h>
#include <trireme/graph/parts/part.h>

#include <cstdint>
#include <vector>

namespace trireme::graph {

struct KeptBytes {
  /// From the end of forward on: what came from other pieces, and the memory that forward took and
  /// backward reads or runs parts again with. Inputs of the graph, parameters and buffers do not
  /// count.
  std::int64_t kept = 0;
  /// The most in backward at the end of the second run of a part, when what it keeps is there and
  /// so is what comes before it; 0 without parts. Gradients do not count.
  std::int64_t rebuilding = 0;
  /// Of what runs again.
  RecomputeCost cost{};
};

/// Of operators `begin` to `end - 1` with these parts. What LibTorch keeps and backward never reads
/// is not known to the record.
KeptBytes kept_bytes(const Graph& graph, int begin, int end, const std::vector<Part>& parts);

/// What the weight part of a backward in two parts reads at most beside `kept`: for each operator
/// that has a parameter what it keeps and its gradient.
std::int64_t bytes_for_weights(const Graph& graph, int begin, int end);

/// The piece as a line of units to choose from (choose.h), each of one operator or of a few that
/// stay together. A buffer that one unit of a range reads and another writes to counts for both,
/// where a second run has one copy of it.
struct PieceLine {
  Line line{};
  std::vector<int> boundaries{};  ///< unit i has the operators from boundary i to i + 1

  std::vector<Part> parts_of(const std::vector<UnitRange>& ranges) const;
};
PieceLine line_of(const Graph& graph, int begin, int end);

}  // namespace trireme::graph

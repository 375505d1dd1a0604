// SPDX-License-Identifier: Apache-2.0
// Sums of operators by the modules and marks that they belong to, down to a depth of the tree.
#pragma once

#include <trireme/graph/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::graph::detail {

/// Totals of operators and parameters.
struct Sums {
  int operators = 0;
  std::int64_t parameters = 0;  ///< elements; shared parameters count once
  double flops = 0;
  double backward_flops = 0;
  std::int64_t bytes = 0;  ///< new memory for results
  /// Bytes that backward needs: tensors, as whole memories and counted with the operator that
  /// allocated them, and masks and statistics.
  std::int64_t kept_bytes = 0;
  int first_stage = -1;  ///< first stage of the operators; -1 without stages or operators
  int last_stage = -1;   ///< last stage of the operators

  Sums& operator+=(const Sums& other);
};

/// Returns the totals of each operator. A parameter counts with the operator that uses it first.
/// @param boundaries boundaries of stages; may be empty.
std::vector<Sums> sums_of_operators(const Graph& graph, const std::vector<int>& boundaries);

/// Returns the bytes of the graph's inputs that backward needs.
std::int64_t kept_bytes_of_inputs(const Graph& graph);

/// Returns the stages as text: `1`, `0 to 1`, or nothing without stages.
std::string stages_of(const Sums& sums);

/// A module or mark that has a line or box of its own.
struct Group {
  std::string path;  ///< path of a module, or name of a mark
  bool is_mark = false;
  Sums sums;
};

/// Throws UsageError unless the boundaries are like those of cut and balance: ascending from 0 to
/// the number of operators.
void check_boundaries(const Graph& graph, const std::vector<int>& boundaries);

int stage_of(const std::vector<int>& boundaries, int node);

/// Throws UsageError for a depth below 0.
void check_depth(int depth);

/// Groups operators and parameters by module, in the order of the tree, with marks after their
/// module. Each belongs to one group; modules with neither are left out.
///
/// A module at `depth` names includes everything within it; a module above it includes only what is
/// in no deeper group. Of the latter, operators after a mark belong to the mark, which may have
/// none. A parameter that no operator uses belongs to the module that its name says.
/// @param boundaries boundaries of stages; may be empty.
std::vector<Group> fold(const Graph& graph, int depth, const std::vector<int>& boundaries);

std::int64_t elements_of(const Value& value);

}  // namespace trireme::graph::detail

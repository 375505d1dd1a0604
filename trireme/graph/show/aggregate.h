// SPDX-License-Identifier: Apache-2.0
// Operators added up by the modules and marks that they belong to, down to a depth of the tree.
#pragma once

#include <trireme/graph/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::graph::detail {

/// What operators and parameters come to.
struct Sums {
  int operators = 0;
  std::int64_t parameters = 0;  ///< elements; those that are shared count once
  double flops = 0;
  double backward_flops = 0;
  std::int64_t bytes = 0;  ///< of new memory for results
  /// Of what it made, that backward needs: tensors, each memory whole and counted where it was
  /// taken, and masks and statistics.
  std::int64_t kept_bytes = 0;
  int first_stage = -1;  ///< of its operators; -1 where there are none
  int last_stage = -1;

  Sums& operator+=(const Sums& other);
};

/// What each operator comes to. A parameter counts in the operator that is given it first.
/// @param boundaries of stages, or none.
std::vector<Sums> sums_of_operators(const Graph& graph, const std::vector<int>& boundaries);

/// Bytes that backward needs of the graph's inputs, together.
std::int64_t kept_bytes_of_inputs(const Graph& graph);

/// `1`, `0 to 1`; nothing where there are no stages.
std::string stages_of(const Sums& sums);

/// What has a line of its own.
struct Group {
  std::string path;  ///< a module's, or a mark's name
  bool is_mark = false;
  Sums sums;
};

/// Throws UsageError unless they are what cut and balance give: from 0 to the number of operators,
/// rising.
void check_boundaries(const Graph& graph, const std::vector<int>& boundaries);

/// The stage that an operator is in.
int stage_of(const std::vector<int>& boundaries, int node);

/// Throws UsageError for a depth below 0.
void check_depth(int depth);

/// Each operator and parameter in one group, in the order of the tree, marks after their module;
/// modules with neither are left out. A module `depth` names deep has all that is within it, one
/// above only what is in no deeper one. Of that, operators after a mark belong to the mark, which
/// may have none. Parameters that no operator is given are in the module that their name says.
/// @param boundaries of stages, or none.
std::vector<Group> fold(const Graph& graph, int depth, const std::vector<int>& boundaries);

std::int64_t elements_of(const Value& value);

}  // namespace trireme::graph::detail

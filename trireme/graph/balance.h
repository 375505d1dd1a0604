// SPDX-License-Identifier: Apache-2.0
// Divides a line of operators into stages of equal cost. Knows neither tensors nor modules: runs
// divide captured graphs by it (cut.h), and predictions divide records.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::graph {

/// Operators in the order of forward. Boundary i lies before operator i.
struct OperatorLine {
  std::vector<double> costs{};        ///< of each operator with its backward
  std::vector<std::int64_t> bytes{};  ///< across each boundary, the one after the last included
  std::vector<bool> is_place{};       ///< for each boundary: a stage may begin there
};

/// Returns the boundaries of `num_stages` stages whose most expensive stage is as cheap as
/// possible: the first operator of each stage, and the number of all operators. Of equally good
/// solutions it takes one with the fewest bytes across boundaries. Takes O(stages * operators *
/// log(operators)) time. Throws UsageError if there are too few places to cut.
std::vector<int> balance(const OperatorLine& line, int num_stages);

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// A graph as tables of text with at most 120 characters in a line. Long names lose their beginning,
// but keep at least 16 characters.
#pragma once

#include <trireme/graph/graph.h>

#include <string>
#include <vector>

namespace trireme::graph {

/// Options of module_table.
struct TableOptions {
  /// The depth of the table: modules with up to this many names in their path have a line of their
  /// own, which includes deeper modules. 0 gives a single line.
  int depth = 2;
  /// Boundaries of stages, as cut, balance and TrainingStep::boundaries return them. They add a
  /// column.
  std::vector<int> boundaries = {};
};

/// Returns a table of modules and marks with a line of totals.
///
/// Each module down to `depth` that has operators or parameters of its own has a line. Each mark
/// (mark.h) has a line with the operators after it in the code of its module; only its name if
/// other lines have all of these operators. Each operator and parameter counts once, a parameter
/// with the operator that uses it first.
///
/// The columns are: number of operators; elements of parameters; FLOPs of forward; FLOPs of
/// backward; bytes of new memory for results; bytes kept for backward. The last includes masks and
/// statistics. Below the table stand the bytes of the inputs and the parameters with several names.
/// Throws UsageError for a depth below 0 and for invalid boundaries.
std::string module_table(const Graph& graph, const TableOptions& options = {});

/// Returns a table of operators in the order in which they ran.
///
/// An operator has at least two lines: first its number, name, module, FLOPs of forward and
/// backward, bytes of results and bytes kept for backward; then its inputs and outputs with dtypes
/// and shapes. `%12` is the result that is value 12; parameters and buffers have their names. Marks
/// and the beginnings of stages stand between the operators. Throws UsageError for invalid
/// boundaries.
/// @param boundaries boundaries of stages; may be empty.
std::string operator_table(const Graph& graph, const std::vector<int>& boundaries = {});

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// A graph as tables of text, 120 letters wide at most: long names lose their beginning, down to 16
// letters.
#pragma once

#include <trireme/graph/graph.h>

#include <string>
#include <vector>

namespace trireme::graph {

struct TableOptions {
  /// Modules whose paths have up to this many names have lines of their own, and what is deeper
  /// counts there: 0 is one line for all.
  int depth = 2;
  /// Of stages, as cut, balance and TrainingStep::boundaries give them: adds a column.
  std::vector<int> boundaries = {};
};

/// Returns a line for each module down to `depth` that has operators or parameters of its own, and
/// for each mark (mark.h) one with what comes after it in the code of its module, or with its name
/// alone where modules with lines of their own have all that; then their totals. Each operator and
/// parameter counts once, a parameter with the operator that is given it first. Columns: how many
/// operators; elements of parameters; FLOPs forward and backward; bytes of new memory for results;
/// of these, and of masks and statistics besides, the bytes that are kept for backward. Below stand
/// what inputs take, and parameters that have several names. Throws UsageError for a depth below 0
/// and boundaries that are none.
std::string module_table(const Graph& graph, const TableOptions& options = {});

/// Returns two lines and more for each operator in the order in which they ran: its number, name,
/// module, FLOPs forward and backward, bytes of results, bytes kept for backward; then what it
/// takes and gives, with dtypes and shapes. `%12` is the result that is value 12; parameters and
/// buffers have their names. Marks and the beginnings of stages stand between them.
/// @param boundaries of stages, or none. Throws UsageError for such that are none.
std::string operator_table(const Graph& graph, const std::vector<int>& boundaries = {});

}  // namespace trireme::graph

// SPDX-License-Identifier: Apache-2.0
// Graphs as files, to be looked at, balanced, cut and compared where the module is not:
// docs/formats/graph.md.
#pragma once

#include <trireme/graph/graph.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::graph {

/// Returns the graph as JSON, which parse_graph reads back: all of it but the values of constants,
/// and arguments that are neither numbers, texts, devices nor lists of numbers, of which the text
/// is kept. Throws UsageError where a name is no UTF-8.
std::string to_text(const Graph& graph);

/// Reads a graph. Tables, pictures, cut, balance and first_difference take it as the one that was
/// written; it cannot be run (Graph::can_run), since constants have no values. Operators are those
/// of this program: libraries that register further ones have to be loaded first.
///
/// Throws DataError with `source` for text that is no JSON, with line and column from 1; and, with
/// the place such as `nodes[12]`, for what is no graph or one of another format, for parts that do
/// not fit each other, and for operators that this program does not have or that take another
/// number of arguments here.
Graph parse_graph(std::string_view text, std::string_view source = "graph");

/// Reads a file. Throws DataError where it cannot be read, and as parse_graph.
Graph read_graph(const std::filesystem::path& file);

/// Writes a file, which appears whole. Throws UsageError as to_text, and DataError where the file
/// system refuses.
void write_graph(const Graph& graph, const std::filesystem::path& file);

}  // namespace trireme::graph

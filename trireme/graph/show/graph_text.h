// SPDX-License-Identifier: Apache-2.0
// Graphs as files, to show, balance, cut and compare them without the module. The format:
// docs/formats/graph.md.
#pragma once

#include <trireme/graph/graph.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::graph {

/// Returns the graph as JSON, which parse_graph reads. It lacks the values of constants. Of
/// arguments other than numbers, strings, devices and lists of numbers it has only the text. Throws
/// UsageError if a name is not valid UTF-8.
std::string to_text(const Graph& graph);

/// Reads a graph from JSON. Tables, pictures, cut, balance and first_difference treat it like the
/// original. It cannot be run (Graph::can_run), because constants have no values. Operators are
/// looked up in this program, so libraries that register further operators must be loaded first.
///
/// Throws DataError that names `source`. For text that is no JSON it has the line and column,
/// counted from 1. Otherwise it has a place such as `nodes[12]`, in these cases:
///   - the document is no graph, or has another format number;
///   - its parts are inconsistent;
///   - this program does not have an operator, or has it with another number of arguments.
Graph parse_graph(std::string_view text, std::string_view source = "graph");

/// Reads a graph from a file. Throws DataError if the file cannot be read, and as parse_graph.
Graph read_graph(const std::filesystem::path& file);

/// Writes a graph to a file atomically. Throws UsageError as to_text, and DataError if the file
/// cannot be written.
void write_graph(const Graph& graph, const std::filesystem::path& file);

}  // namespace trireme::graph

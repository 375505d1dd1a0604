// SPDX-License-Identifier: Apache-2.0
// Cuts the record of a module in evaluation where the one of training was cut.
#pragma once

#include <trireme/graph/graph.h>

#include <vector>

namespace trireme::pipeline {

/// Boundaries for `graph`, whose stages use the parameters and buffers that those of `trained` use:
/// the same ones where the operators are the same, else the last place before the first of these
/// at which a cut is possible. What is used again in a later stage counts for the first. Throws
/// UsageError where there is no such place.
/// @param boundaries of `trained`.
std::vector<int> cut_like(const graph::Graph& graph, const graph::Graph& trained,
                          const std::vector<int>& boundaries);

}  // namespace trireme::pipeline

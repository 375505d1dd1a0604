// SPDX-License-Identifier: Apache-2.0
// cut_like(): cuts a later graph of a module (evaluation, other shapes, another function) so that
// each stage keeps the parameters that it has in the first graph of training.
#pragma once

#include <trireme/graph/graph.h>

#include <vector>

namespace trireme::pipeline {

/// Returns boundaries for `graph` whose stages use the parameters and buffers that the stages of
/// `trained` use. If the operators are the same, the boundaries are too. Otherwise, a stage begins
/// at the last possible cut before the first operator that uses one of its parameters or buffers. A
/// tensor that several stages use counts for the first of them. A tensor that training does not
/// change counts only if a cut exists that keeps it in its stage. Throws UsageError if no cut is
/// possible.
/// @param boundaries the boundaries of `trained`.
std::vector<int> cut_like(const graph::Graph& graph, const graph::Graph& trained,
                          const std::vector<int>& boundaries);

}  // namespace trireme::pipeline

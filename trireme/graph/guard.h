// SPDX-License-Identifier: Apache-2.0
// Tells when a graph is out of date: by a key of what forward depends on, and by comparing it with
// a graph that was recorded anew.
#pragma once

#include <trireme/graph/graph.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph {

/// Returns a key that is equal for runs that can use one graph, as far as can be seen from outside.
/// It contains the training flag of each module, the shapes, dtypes and requires_grad of the
/// inputs, and the autocast settings. Meant for a map of graphs.
std::string capture_key(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs);

/// Returns a description of the first difference between two graphs: another module, input,
/// operator, argument or shape. Empty if they are the same. Constants are compared by shape, not by
/// value.
std::string first_difference(const Graph& before, const Graph& after);

}  // namespace trireme::graph

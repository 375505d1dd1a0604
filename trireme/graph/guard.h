// SPDX-License-Identifier: Apache-2.0
// Whether a record is still true: what forward depends on is compared by a key, and a graph with
// one recorded anew.
#pragma once

#include <trireme/graph/graph.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph {

/// Equal for runs that one graph is good for, as far as can be seen from outside: whether each
/// module is in training, shapes, dtypes and requires_grad of inputs, and autocast. For a map of
/// graphs.
std::string capture_key(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs);

/// Says in words what the first operator is in which two graphs differ, and in what: another
/// operator, other arguments, inputs or shapes, another module. Empty where they are the same.
/// Constants count by shape, not by their values.
std::string first_difference(const Graph& before, const Graph& after);

}  // namespace trireme::graph

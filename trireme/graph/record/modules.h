// SPDX-License-Identifier: Apache-2.0
// Finds the module that an operator belongs to. C++ modules have no hooks around forward, so the
// parameters of the operators are used instead.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/tensor_uses.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph::detail {

/// A parameter or buffer of the module tree.
struct ModuleTensor {
  at::Tensor tensor;
  std::vector<std::string> names;  ///< several if modules share it
  bool is_parameter = true;
};

/// The modules of a tree and their tensors.
struct ModuleTree {
  explicit ModuleTree(const torch::nn::Module& module);

  std::vector<ModuleState> modules;
  /// Parameters before buffers; each once, undefined ones left out.
  std::vector<ModuleTensor> tensors;
  /// Paths of containers such as Sequential, which have no operators of their own.
  std::unordered_set<std::string> lists;
};

/// Returns the innermost module that contains all parameters and buffers of an operator; nullopt if
/// it has none.
std::optional<std::string> touched_module(const std::vector<TensorUse>& uses);

/// Sets Node::module and Mark::module. An operator without parameters is attributed to the
/// innermost module that contains the operators with parameters before and after it. If that is a
/// container, it is attributed to the element before.
void assign_modules(Graph& graph, const ModuleTree& tree);

}  // namespace trireme::graph::detail

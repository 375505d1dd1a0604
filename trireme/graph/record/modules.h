// SPDX-License-Identifier: Apache-2.0
// Which module of the tree an operator belongs to: C++ modules have no hooks around forward, so the
// parameters that operators touch have to tell.
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

/// A parameter or buffer.
struct ModuleTensor {
  at::Tensor tensor;
  std::vector<std::string> names;  ///< more than one where modules share it
  bool is_parameter = true;
};

struct ModuleTree {
  explicit ModuleTree(const torch::nn::Module& module);

  std::vector<ModuleState> modules;
  /// Parameters first; each once, and none that is undefined.
  std::vector<ModuleTensor> tensors;
  /// Paths of lists of modules, which have no operators of their own.
  std::unordered_set<std::string> lists;
};

/// The module whose parameters and buffers an operator is given: the innermost that has them all.
/// Nothing where it is given none.
std::optional<std::string> touched_module(const std::vector<TensorUse>& uses);

/// Sets Node::module and Mark::module. An operator without parameters belongs to the module whose
/// code calls it, as far as can be told: the innermost that has the operators with parameters
/// before and after it, or, where that is a list, the element before.
void assign_modules(Graph& graph, const ModuleTree& tree);

}  // namespace trireme::graph::detail

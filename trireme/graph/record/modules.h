// SPDX-License-Identifier: Apache-2.0
// Finds the module that an operator belongs to. C++ modules have no hooks around forward, so the
// parameters of the operators are used instead.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/tensor_uses.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
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

/// Returns the module of each of a number of operators, in the order in which they run.
///
/// An operator without parameters belongs to the innermost module that contains the operators with
/// parameters before and after it. If that is a container, it belongs to the element before or to
/// the element after: operators are divided between these where the fewest bytes are passed on,
/// and as late as possible. Thus the sum at the end of a transformer's block belongs to that block,
/// and the beginning of a normalisation that consists of several operators to the next one.
///
/// @param touched touched_module() of each operator.
/// @param across bytes of tensors that earlier operators make and this or later ones need, for each
/// operator; a last entry is for the results.
/// @param lists paths of containers.
std::vector<std::string> modules_of_operators(std::span<const std::optional<std::string>> touched,
                                              std::span<const std::int64_t> across,
                                              const std::unordered_set<std::string>& lists);

/// Sets Node::module by modules_of_operators(), and Mark::module.
void assign_modules(Graph& graph, const ModuleTree& tree);

}  // namespace trireme::graph::detail

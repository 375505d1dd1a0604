// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/modules.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace trireme::graph::detail {
namespace {

bool is_list(const std::string& type) {
  return type == "torch::nn::SequentialImpl" || type == "torch::nn::ModuleListImpl" ||
         type == "torch::nn::ModuleDictImpl";
}

template <typename OrderedDict>
void add_tensors(const OrderedDict& all, bool is_parameter, std::vector<ModuleTensor>& tensors,
                 std::unordered_map<const c10::TensorImpl*, std::size_t>& seen) {
  for (const auto& item : all) {
    if (!item.value().defined()) continue;
    const auto [found, is_new] =
        seen.try_emplace(item.value().unsafeGetTensorImpl(), tensors.size());
    if (is_new) {
      tensors.push_back({.tensor = item.value(), .names = {}, .is_parameter = is_parameter});
    }
    tensors[found->second].names.push_back(item.key());
  }
}

// Returns the child of `module` that contains `path`.
std::string child_towards(const std::string& module, const std::string& path) {
  const std::size_t begin = module.empty() ? 0 : module.size() + 1;
  if (path.size() < begin) return module;
  return path.substr(0, path.find('.', begin));
}

// Returns the module of an operator between operators of two modules.
std::string module_between(const std::string& before, const std::string& after,
                           const ModuleTree& tree) {
  const std::string common = common_module(before, after);
  return tree.lists.contains(common) ? child_towards(common, before) : common;
}

}  // namespace

ModuleTree::ModuleTree(const torch::nn::Module& module) {
  module.apply([this](const std::string& path, const torch::nn::Module& child) {
    modules.push_back({.path = path, .type = child.name(), .is_training = child.is_training()});
    if (is_list(child.name())) lists.insert(path);
  });
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  add_tensors(module.named_parameters(), true, tensors, seen);
  add_tensors(module.named_buffers(), false, tensors, seen);
}

std::optional<std::string> touched_module(const std::vector<TensorUse>& uses) {
  std::optional<std::string> touched;
  for (const TensorUse& use : uses) {
    touched = touched ? common_module(*touched, use.module) : use.module;
  }
  return touched;
}

void assign_modules(Graph& graph, const ModuleTree& tree) {
  TensorUses uses(graph);
  std::vector<std::optional<std::string>> touched;
  for (const Node& node : graph.nodes) touched.push_back(touched_module(uses.take(node)));
  std::vector<const std::string*> after(touched.size() + 1, nullptr);
  for (std::size_t i = touched.size(); i-- > 0;) {
    after[i] = touched[i] ? &*touched[i] : after[i + 1];
  }
  std::string before;
  for (std::size_t i = 0; i < touched.size(); ++i) {
    std::string& module = graph.nodes[i].module;
    if (touched[i]) {
      before = module = *touched[i];
    } else if (after[i] != nullptr) {
      module = module_between(before, *after[i], tree);
    }
  }
  for (Mark& mark : graph.marks) {
    if (mark.node == 0 || mark.node == graph.num_nodes()) continue;
    mark.module = common_module(graph.node(mark.node - 1).module, graph.node(mark.node).module);
  }
}

}  // namespace trireme::graph::detail

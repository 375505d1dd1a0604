// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/modules.h>

#include <trireme/graph/boundaries.h>

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

// Returns the boundary from `begin` to `end` that the fewest bytes cross, the last of equal ones.
std::size_t narrowest(std::span<const std::int64_t> across, std::size_t begin, std::size_t end) {
  std::size_t best = begin;
  for (std::size_t i = begin + 1; i <= end; ++i) {
    if (across[i] <= across[best]) best = i;
  }
  return best;
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

std::vector<std::string> modules_of_operators(std::span<const std::optional<std::string>> touched,
                                              std::span<const std::int64_t> across,
                                              const std::unordered_set<std::string>& lists) {
  std::vector<std::string> modules(touched.size());  // of the outermost module, if nothing else
  std::string before;
  for (std::size_t begin = 0; begin < touched.size();) {
    if (touched[begin]) {
      before = modules[begin] = *touched[begin];
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < touched.size() && !touched[end]) ++end;
    if (end == touched.size()) break;
    const std::string common = common_module(before, *touched[end]);
    if (lists.contains(common)) {
      const std::size_t middle = narrowest(across, begin, end);
      const auto gap = std::span(modules).subspan(begin, end - begin);
      std::ranges::fill(gap.first(middle - begin), child_towards(common, before));
      std::ranges::fill(gap.subspan(middle - begin), child_towards(common, *touched[end]));
    } else {
      std::ranges::fill(std::span(modules).subspan(begin, end - begin), common);
    }
    begin = end;
  }
  return modules;
}

void assign_modules(Graph& graph, const ModuleTree& tree) {
  TensorUses uses(graph);
  std::vector<std::optional<std::string>> touched;
  for (const Node& node : graph.nodes) touched.push_back(touched_module(uses.take(node)));
  std::vector<std::string> modules = modules_of_operators(touched, bytes_across(graph), tree.lists);
  for (std::size_t i = 0; i < modules.size(); ++i) graph.nodes[i].module = std::move(modules[i]);
  for (Mark& mark : graph.marks) {
    if (mark.node == 0 || mark.node == graph.num_nodes()) continue;
    mark.module = common_module(graph.node(mark.node - 1).module, graph.node(mark.node).module);
  }
}

}  // namespace trireme::graph::detail

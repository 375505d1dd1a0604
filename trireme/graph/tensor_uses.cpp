// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/tensor_uses.h>

#include <trireme/graph/module_path.h>

#include <algorithm>

namespace trireme::graph::detail {
namespace {

bool is_embedding(const Graph& graph, const std::string& module) {
  const auto found = std::ranges::find(graph.modules, module, &ModuleState::path);
  return found != graph.modules.end() && found->type.find("Embedding") != std::string::npos;
}

}  // namespace

TensorUses::Candidates TensorUses::candidates(ValueId object, const Node& node) const {
  const std::vector<std::string>& names = graph_->value(object).names;
  if (names.size() == 1) return {.modules = {module_of(names.front())}};
  const bool is_lookup = node.op.operator_name().name.starts_with("aten::embedding");
  Candidates all;
  Candidates suitable;
  suitable.is_lookup = is_lookup;
  for (const std::string& name : names) {
    all.modules.push_back(module_of(name));
    if (is_embedding(*graph_, all.modules.back()) == is_lookup) {
      suitable.modules.push_back(all.modules.back());
    }
  }
  // If all or none of the modules are embeddings, all uses count alike.
  const bool tells_apart = !suitable.modules.empty() && suitable.modules.size() < names.size();
  return tells_apart ? suitable : all;
}

std::vector<TensorUse> TensorUses::of(const Node& node) const {
  std::vector<TensorUse> uses;
  for (const std::vector<ValueId>& argument : node.inputs) {
    for (const ValueId id : argument) {
      if (id == kNoValue) continue;
      const ValueId object = graph_->value(id).object;
      if (graph_->value(object).names.empty()) continue;
      if (std::ranges::find(uses, object, &TensorUse::object) != uses.end()) continue;
      const Candidates all = candidates(object, node);
      const auto count = counts_.find({object, all.is_lookup});
      const std::size_t before = count == counts_.end() ? 0 : count->second;
      uses.push_back({object, all.modules[std::min(before, all.modules.size() - 1)]});
    }
  }
  return uses;
}

std::vector<TensorUse> TensorUses::take(const Node& node) {
  std::vector<TensorUse> uses = of(node);
  for (const TensorUse& use : uses) ++counts_[{use.object, candidates(use.object, node).is_lookup}];
  return uses;
}

}  // namespace trireme::graph::detail

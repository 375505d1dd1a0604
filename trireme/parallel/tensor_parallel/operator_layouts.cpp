// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/operator_layouts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/planned_layouts.h>

#include <fnmatch.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {
namespace {

// A module that has parameters of its own.
struct ModuleWithWeights {
  std::string path;
  bool is_embedding = false;
  std::vector<at::Tensor> weights;
};
using ModulesWithWeights = std::vector<ModuleWithWeights>;

ModulesWithWeights modules_with_weights(const torch::nn::Module* module) {
  ModulesWithWeights all;
  if (module == nullptr) return all;
  for (const auto& entry : module->named_modules("", /*include_self=*/false)) {
    ModuleWithWeights found = {
        .path = entry.key(),
        .is_embedding = entry.value()->as<torch::nn::Embedding>() != nullptr ||
                        entry.value()->as<torch::nn::EmbeddingBag>() != nullptr,
        .weights = entry.value()->parameters(/*recurse=*/false)};
    if (!found.weights.empty()) all.push_back(std::move(found));
  }
  return all;
}

// Returns the layouts of an entry without the operators that they are for.
tensor::PlannedLayouts without_operators(const OperatorLayout& layout, const DeviceMesh& mesh) {
  tensor::PlannedLayouts planned;
  planned.entry = to_string(layout);
  planned.parts = layout.parts;
  if (layout.result.empty()) return planned;
  planned.result.assign(static_cast<std::size_t>(mesh.num_axes()), std::nullopt);
  for (const auto& [axis, placement] : layout.result) {
    planned.result[static_cast<std::size_t>(mesh.axis(axis))] = placement;
  }
  return planned;
}

[[noreturn]] void refuse_pattern(const OperatorLayout& layout, const ModulesWithWeights& modules) {
  const std::string paths =
      list_text(modules | std::views::take(8), ", ", &ModuleWithWeights::path);
  throw UsageError(join_message("plan: operators has the entry ", to_string(layout), ", and ",
                                layout.pattern, " fits no module with parameters of its own"),
                   modules.empty()
                       ? "name operators, such as aten::gelu"
                       : join_message("the module has ", paths, modules.size() > 8 ? ", …" : "",
                                      "; the name of an operator contains ::"));
}

// A weight may belong to several modules. An operator that uses it can follow one entry only.
void check_is_claimed_once(const std::vector<tensor::PlannedLayouts>& all) {
  std::map<const c10::TensorImpl*, const tensor::PlannedLayouts*> claims;
  for (const tensor::PlannedLayouts& each : all) {
    for (const auto& weight : each.weights) {
      const auto [found, is_new] = claims.emplace(weight._unsafe_get_target(), &each);
      if (is_new || found->second == &each) continue;
      throw UsageError(
          join_message("plan: operators has the entries ", found->second->entry, " and ",
                       each.entry, " for modules that share a parameter, by which they are known"),
          "give only one of them an entry, or name operators");
    }
  }
}

}  // namespace

void set_operator_layouts(const torch::nn::Module* module, const DeviceMesh& mesh,
                          const OperatorLayouts& layouts) {
  std::vector<tensor::PlannedLayouts> all;
  const ModulesWithWeights modules =
      layouts.empty() ? ModulesWithWeights() : modules_with_weights(module);
  std::set<std::string> claimed;  // paths: the first entry that names a module applies
  for (const OperatorLayout& layout : layouts) {
    tensor::PlannedLayouts planned = without_operators(layout, mesh);
    if (names_operators(layout)) {
      planned.operators = layout.pattern;
      all.push_back(std::move(planned));
      continue;
    }
    tensor::PlannedLayouts of_embeddings = planned;
    of_embeddings.of_embeddings = true;
    bool fits_any = false;
    for (const ModuleWithWeights& each : modules) {
      if (::fnmatch(layout.pattern.c_str(), each.path.c_str(), FNM_NOESCAPE) != 0) continue;
      fits_any = true;
      if (!claimed.insert(each.path).second) continue;
      auto& weights = each.is_embedding ? of_embeddings.weights : planned.weights;
      for (const at::Tensor& weight : each.weights) weights.emplace_back(weight.getIntrusivePtr());
    }
    if (!fits_any) refuse_pattern(layout, modules);
    if (!planned.weights.empty()) all.push_back(std::move(planned));
    if (!of_embeddings.weights.empty()) all.push_back(std::move(of_embeddings));
  }
  check_is_claimed_once(all);
  tensor::set_planned_layouts(mesh, std::move(all));
}

}  // namespace trireme::detail

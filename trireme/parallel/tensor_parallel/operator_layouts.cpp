// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/operator_layouts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/planned_layouts.h>

#include <fnmatch.h>
#include <torch/nn/module.h>

#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {
namespace {

using Weights = std::vector<const c10::TensorImpl*>;
using ModulesWithWeights = std::vector<std::pair<std::string, Weights>>;

// Returns the modules that have parameters of their own, with these.
ModulesWithWeights modules_with_weights(const torch::nn::Module* module) {
  ModulesWithWeights all;
  if (module == nullptr) return all;
  for (const auto& entry : module->named_modules("", /*include_self=*/false)) {
    Weights weights;
    for (const at::Tensor& parameter : entry.value()->parameters(/*recurse=*/false)) {
      weights.push_back(parameter.unsafeGetTensorImpl());
    }
    if (!weights.empty()) all.emplace_back(entry.key(), std::move(weights));
  }
  return all;
}

[[noreturn]] void refuse_pattern(const OperatorLayout& layout, const ModulesWithWeights& modules) {
  const std::string paths =
      list_text(modules | std::views::take(8), ", ", [](const auto& each) { return each.first; });
  throw UsageError(join_message("plan: operators has the entry ", to_string(layout), ", and ",
                                layout.pattern, " fits no module with parameters of its own"),
                   modules.empty()
                       ? "name operators, such as aten::softmax"
                       : join_message("the module has ", paths, modules.size() > 8 ? ", …" : "",
                                      "; the name of an operator contains ::"));
}

}  // namespace

void set_operator_layouts(const torch::nn::Module* module, const DeviceMesh& mesh,
                          const OperatorLayouts& layouts) {
  std::vector<tensor::PlannedLayouts> all;
  const ModulesWithWeights modules =
      layouts.empty() ? ModulesWithWeights() : modules_with_weights(module);
  for (const OperatorLayout& layout : layouts) {
    tensor::PlannedLayouts& planned =
        all.emplace_back(tensor::PlannedLayouts{.entry = to_string(layout)});
    planned.parts = layout.parts;
    if (!layout.result.empty()) {
      planned.result.assign(static_cast<std::size_t>(mesh.num_axes()), std::nullopt);
      for (const auto& [axis, placement] : layout.result) {
        planned.result[static_cast<std::size_t>(mesh.axis(axis))] = placement;
      }
    }
    if (names_operators(layout)) {
      planned.operators = layout.pattern;
      continue;
    }
    for (const auto& [path, weights] : modules) {
      if (::fnmatch(layout.pattern.c_str(), path.c_str(), FNM_NOESCAPE) != 0) continue;
      planned.weights.insert(planned.weights.end(), weights.begin(), weights.end());
    }
    if (planned.weights.empty()) refuse_pattern(layout, modules);
  }
  tensor::set_planned_layouts(mesh, std::move(all));
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/module_layouts.h>

#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/nn/module.h>

#include <map>
#include <string>

namespace trireme::detail {

ModuleLayouts::ModuleLayouts(const torch::nn::Module& module, const DeviceMesh& mesh,
                             const ParameterLayouts& layouts)
    : mesh_(mesh) {
  if (!mesh_.defined()) return;
  std::map<std::string, Layout> by_name;
  for (const DistributedParameter& given : planned_layouts(module, mesh_, layouts)) {
    by_name.emplace(given.name, given.is_plain ? Layout() : given.layout);
  }
  // planned_layouts() lists a shared tensor under its first name only, and so do these lists.
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      const auto found = by_name.find(item.key());
      if (found != by_name.end())
        layouts_.emplace(item.value().unsafeGetTensorImpl(), found->second);
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
}

void ModuleLayouts::distribute(const std::vector<at::Tensor>& tensors) const {
  if (!mesh_.defined()) return;
  for (const at::Tensor& tensor : tensors) {
    if (has_layout(tensor) || is_deferred(tensor)) continue;
    const Layout& layout = layouts_.at(tensor.unsafeGetTensorImpl());
    if (!layout.defined()) continue;  // kept whole
    distribute_in_place(tensor, layout);
    at::Tensor& gradient = tensor.mutable_grad();
    if (gradient.defined()) gradient = trireme::distribute(gradient.detach(), layout);
  }
}

}  // namespace trireme::detail

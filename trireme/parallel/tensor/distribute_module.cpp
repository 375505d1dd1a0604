// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor/distribute_module.h>

#include <trireme/base/error.h>
#include <trireme/parallel/named_tensors.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace trireme {
namespace {

std::vector<detail::NamedTensor> all_tensors(const torch::nn::Module& module) {
  std::vector<detail::NamedTensor> all = detail::named_tensors(module.named_parameters());
  for (const detail::NamedTensor& buffer : detail::named_tensors(module.named_buffers())) {
    all.push_back(buffer);
  }
  return all;
}

void check_patterns(const std::vector<detail::NamedTensor>& tensors,
                    const ParameterLayouts& layouts) {
  for (const ParameterLayout& layout : layouts) {
    const bool fits = std::ranges::any_of(tensors, [&](const detail::NamedTensor& item) {
      return find_layout({layout}, item.name) != nullptr;
    });
    if (fits || layout.is_optional) continue;
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(tensors.size(), 8); ++i) {
      names += (i == 0 ? "" : ", ") + tensors[i].name;
    }
    throw UsageError(join_message("the pattern ", layout.pattern, " fits no parameter or buffer"),
                     join_message("the module has ", names, tensors.size() > 8 ? ", …" : ""));
  }
}

Layout layout_for(const detail::NamedTensor& item, const DeviceMesh& mesh,
                  const ParameterLayouts& layouts) {
  const ParameterLayout* found = find_layout(layouts, item.name);
  const Layout layout =
      found == nullptr ? Layout::replicated(mesh) : Layout(mesh, found->placements);
  for (const Placement& placement : layout.placements()) {
    if (!placement.is_shard() || placement.dim() < item.tensor.dim()) continue;
    throw UsageError(join_message("parameter ", item.name, " of ", item.tensor.sizes(),
                                  " cannot be cut along dim ", placement.dim(), ", as ",
                                  found->pattern, " -> ", placement.to_string(), " asks for"),
                     "give a pattern of its own before that one");
  }
  return layout;
}

}  // namespace

std::vector<DistributedParameter> distribute_module(torch::nn::Module& module,
                                                    const DeviceMesh& mesh,
                                                    const ParameterLayouts& layouts) {
  const std::vector<detail::NamedTensor> tensors = all_tensors(module);
  check_patterns(tensors, layouts);
  std::vector<DistributedParameter> given;
  for (const detail::NamedTensor& item : tensors) {
    if (has_layout(item.tensor)) {
      throw UsageError(join_message("parameter ", item.name, " is distributed already, as ",
                                    describe(item.tensor)),
                       "distribute a module once");
    }
    given.push_back({item.name, layout_for(item, mesh, layouts)});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    distribute_in_place(tensors[i].tensor, given[i].layout);
  }
  return given;
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/distribute_module.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/consensus.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <unordered_map>

namespace trireme {
namespace {

// A parameter or buffer with all its names. It has several if modules share it.
struct Item {
  const char* kind;
  std::vector<std::string> names;
  at::Tensor tensor;
};

std::vector<Item> all_tensors(const torch::nn::Module& module) {
  std::vector<Item> all;
  std::unordered_map<const c10::TensorImpl*, std::size_t> place;
  const auto add = [&](const auto& tensors, const char* kind) {
    for (const auto& named : tensors) {
      if (!named.value().defined()) continue;
      const auto [at, is_new] = place.emplace(named.value().unsafeGetTensorImpl(), all.size());
      if (is_new) all.push_back({kind, {}, named.value()});
      all[at->second].names.push_back(named.key());
    }
  };
  add(module.named_parameters(), "parameter");
  add(module.named_buffers(), "buffer");
  return all;
}

void check_patterns(const std::vector<Item>& items, const ParameterLayouts& layouts) {
  // A pattern that fits nothing is most likely misspelt, and would silently leave tensors
  // replicated.
  for (const ParameterLayout& layout : layouts) {
    const bool fits = std::ranges::any_of(items, [&](const Item& item) {
      return std::ranges::any_of(item.names, [&](const std::string& name) {
        return find_layout({layout}, name) != nullptr;
      });
    });
    if (fits || layout.is_optional) continue;
    const std::string names = list_text(items | std::views::take(8), ", ",
                                        [](const Item& item) { return item.names.front(); });
    throw UsageError(join_message("the pattern ", layout.pattern, " fits no parameter or buffer"),
                     join_message("the module has ", names, items.size() > 8 ? ", …" : ""));
  }
}

void check_placements(const Item& item, const Layout& layout, const ParameterLayout& asked) {
  const auto what = [&](const auto&... how) {
    return join_message(item.kind, " ", item.names.front(), " of ", item.tensor.sizes(),
                        " cannot be ", how..., ", as ", to_string(asked), " asks for");
  };
  for (const Placement& placement : layout.placements()) {
    if (placement.is_shard() && placement.dim() >= item.tensor.dim()) {
      throw UsageError(what("cut along dim ", placement.dim()),
                       "give a pattern of its own before that one");
    }
    if (placement.is_partial()) {
      throw UsageError(what(placement.to_string()),
                       "an optimizer would step a summand as if it were the value; give Replicate, "
                       "Shard or FlatShard");
    }
  }
  if (!layout.has_flat_shard()) return;
  try {
    local_sizes(item.tensor.sizes(), layout, tensor::coordinate_here(layout.mesh()));
  } catch (const UsageError&) {
    throw UsageError(what("cut into these ranges, which do not cover it"),
                     "give ranges that cover its elements");
  }
}

// Returns the layout of the first pattern that fits one of the item's names, or Replicate if none
// does. Throws if patterns for different names of the item disagree.
DistributedParameter layout_for(const Item& item, const DeviceMesh& mesh,
                                const ParameterLayouts& layouts) {
  Layout chosen;
  bool is_plain = false;
  const std::string* chosen_by = nullptr;
  for (const std::string& name : item.names) {
    const ParameterLayout* const found = find_layout(layouts, name);
    if (found == nullptr) continue;
    const Layout layout(mesh, found->placements);
    check_placements(item, layout, *found);
    const auto described = [](const Layout& each, bool stays_plain) {
      return stays_plain ? std::string("plain") : each.to_string();
    };
    if (chosen_by != nullptr && (layout != chosen || found->is_plain != is_plain)) {
      throw UsageError(join_message(item.kind, " ", *chosen_by, ", which is ", name, " too, is as ",
                                    described(chosen, is_plain), " by the one name and as ",
                                    described(layout, found->is_plain), " by the other"),
                       "give both names the same placements, or only one of them a pattern");
    }
    if (chosen_by == nullptr) chosen_by = &name;
    chosen = layout;
    is_plain = found->is_plain;
  }
  return {.name = item.names.front(),
          .layout = chosen_by != nullptr ? chosen : Layout::replicated(mesh),
          .is_plain = is_plain};
}

void check_item(const Item& item) {
  if (has_layout(item.tensor)) {
    throw UsageError(join_message(item.kind, " ", item.names.front(),
                                  " is distributed already, as ", describe(item.tensor)),
                     "distribute a module once");
  }
  const at::Tensor& gradient = item.tensor.grad();
  if (gradient.defined() && (gradient.is_sparse() || has_layout(gradient))) {
    throw UsageError(join_message("the gradient of ", item.kind, " ", item.names.front(), " is ",
                                  gradient.is_sparse() ? "sparse" : "distributed already"),
                     "call zero_grad() before");
  }
}

}  // namespace

std::vector<DistributedParameter> planned_layouts(ConstModuleRef holder, const DeviceMesh& mesh,
                                                  const ParameterLayouts& layouts) {
  const torch::nn::Module& module = *holder;
  const std::vector<Item> items = all_tensors(module);
  check_patterns(items, layouts);
  std::vector<DistributedParameter> given;
  for (const Item& item : items) {
    check_item(item);
    given.push_back(layout_for(item, mesh, layouts));
  }
  return given;
}

std::vector<DistributedParameter> distribute_module(ModuleRef holder, const DeviceMesh& mesh,
                                                    const ParameterLayouts& layouts) {
  torch::nn::Module& module = *holder;
  // Checks everything first, so that an error leaves the module unchanged.
  std::vector<DistributedParameter> given;
  comm::succeed_together("distribute the module", mesh.group(),
                         [&] { given = planned_layouts(module, mesh, layouts); });
  const std::vector<Item> items = all_tensors(module);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (given[i].is_plain) continue;
    const at::Tensor& tensor = items[i].tensor;
    distribute_in_place(tensor, given[i].layout);
    at::Tensor& gradient = tensor.mutable_grad();
    if (gradient.defined()) gradient = distribute(gradient.detach(), given[i].layout);
  }
  return given;
}

}  // namespace trireme

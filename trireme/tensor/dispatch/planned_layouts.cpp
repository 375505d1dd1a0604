// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/planned_layouts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/core/grad_mode.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

namespace trireme::tensor {
namespace {

thread_local int num_forwards_within_backward = 0;

std::string without_overload(std::string_view name) {
  return std::string(name.substr(0, name.find('.')));
}

bool is_look_up(std::string_view name) {
  return name == "aten::embedding" || name == "aten::_embedding_bag" ||
         name == "aten::_embedding_bag_forward_only";
}

// Returns true for operators, other than look-ups, whose layouts are set by their weight.
// Optimizers and norms of gradients use parameters too, but not as weights.
bool uses_weight(std::string_view name) {
  constexpr std::array<std::string_view, 19> kNames = {"aten::linear",
                                                       "aten::matmul",
                                                       "aten::mm",
                                                       "aten::addmm",
                                                       "aten::bmm",
                                                       "aten::baddbmm",
                                                       "aten::mv",
                                                       "aten::_trilinear",
                                                       "aten::convolution",
                                                       "aten::_convolution",
                                                       "aten::mkldnn_rnn_layer",
                                                       "aten::native_layer_norm",
                                                       "aten::native_group_norm",
                                                       "aten::native_batch_norm",
                                                       "aten::_native_batch_norm_legit",
                                                       "aten::_batch_norm_with_update",
                                                       "aten::_native_batch_norm_legit_no_training",
                                                       "aten::_fused_rms_norm",
                                                       "aten::rms_norm"};
  return std::ranges::find(kNames, name) != kNames.end();
}

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0 ||
         ::fnmatch(pattern.c_str(), without_overload(name).c_str(), FNM_NOESCAPE) == 0;
}

// Patterns for several operators leave out those that take no layouts of their own.
bool is_passed_over(const PlannedLayouts& layouts, const OperatorFacts& facts) {
  return layouts.operators.find_first_of("*?[") != std::string::npos &&
         (facts.returns_view || !facts.written.empty());
}

const AttachedLinks* attached(const DeviceMesh::State& mesh) noexcept {
  return static_cast<const AttachedLinks*>(mesh.attachment.load(std::memory_order_acquire));
}

// Returns the layouts by name, which are the same in all lists of a mesh.
const std::vector<PlannedLayouts>* list_of(const DeviceMesh::State& mesh) noexcept {
  const AttachedLinks* const links = attached(mesh);
  return links == nullptr ? nullptr : links->planned_layouts.load(std::memory_order_acquire);
}

std::vector<PlannedLayouts> by_name(std::vector<PlannedLayouts> layouts) {
  std::erase_if(layouts, [](const PlannedLayouts& each) { return each.operators.empty(); });
  return layouts;
}

void check_names(const std::vector<PlannedLayouts>& layouts) {
  for (const PlannedLayouts& each : layouts) {
    if (each.operators.empty()) continue;
    const std::string pattern = without_overload(each.operators);
    const bool is_known = std::ranges::any_of(
        names_of_rules(), [&](const std::string& name) { return fits(pattern, name); });
    if (is_known) continue;
    throw UsageError(join_message("the plan has ", each.entry, ", and ", each.operators,
                                  " fits no operator with a rule"),
                     "use the names that explain prints, such as aten::_softmax where code calls "
                     "softmax (docs/operators.md)");
  }
}

}  // namespace

void set_planned_layouts(const DeviceMesh& mesh, std::vector<PlannedLayouts> layouts) {
  check_names(layouts);
  static_cast<void>(Layout::replicated(mesh));  // makes the attachment
  auto& links =
      static_cast<AttachedLinks&>(*mesh.state()->attachment.load(std::memory_order_acquire));
  const std::lock_guard lock(links.links_mutex);
  if (!links.planned_lists.empty()) {
    if (*links.planned_lists.back() == layouts) return;
    const auto before = by_name(*links.planned_lists.back());
    if (before != by_name(layouts)) {
      throw UsageError(join_message("modules on mesh ", mesh.to_string(),
                                    " have plans with other layouts for the names of operators: ",
                                    list_text(before, ", ", &PlannedLayouts::entry)),
                       "name modules in plan.operators, or give each module a mesh of its own");
    }
  } else if (layouts.empty()) {
    return;
  }
  links.planned_lists.push_back(
      std::make_shared<const std::vector<PlannedLayouts>>(std::move(layouts)));
  links.planned_layouts.store(links.planned_lists.back().get(), std::memory_order_release);
  outdate_decisions();
}

const PlannedLayouts* layouts_of_weight(const DeviceMesh::State& mesh,
                                        const c10::TensorImpl* tensor) noexcept {
  if (list_of(mesh) == nullptr) return nullptr;
  for (const auto& list : attached(mesh)->planned_lists) {
    for (const PlannedLayouts& each : *list) {
      for (const auto& weight : each.weights) {
        if (weight._unsafe_get_target() == tensor) return &each;
      }
    }
  }
  return nullptr;
}

bool has_planned_layouts(const DeviceMesh::State& mesh) noexcept {
  return list_of(mesh) != nullptr;
}

const PlannedLayouts* planned_layouts(const OperatorFacts& facts, const InputSlots& inputs) {
  const std::vector<PlannedLayouts>* list = nullptr;
  const std::string name = without_overload(facts.name);
  for (const InputSlot& input : inputs) {
    if (input.meta == nullptr) continue;
    if (list == nullptr) list = list_of(*input.meta->layout.mesh_state());
    const PlannedLayouts* const own = input.meta->as_weight;
    if (own != nullptr && (own->of_embeddings ? is_look_up(name) : uses_weight(name))) return own;
  }
  if (list == nullptr) return nullptr;
  const auto found = std::ranges::find_if(*list, [&](const PlannedLayouts& each) {
    return !each.operators.empty() && fits(each.operators, facts.name) &&
           !is_passed_over(each, facts);
  });
  return found == list->end() ? nullptr : &*found;
}

bool apply_here(const PlannedLayouts& layouts, const InputSlots& inputs) {
  const bool is_in_forward =
      torch::autograd::get_current_graph_task_id() == -1 || num_forwards_within_backward > 0;
  if (!is_in_forward || layouts.operators.empty()) return is_in_forward;
  return at::GradMode::is_enabled() && std::ranges::any_of(inputs, [](const InputSlot& input) {
           return input.tensor->requires_grad();
         });
}

ForwardWithinBackward::ForwardWithinBackward() noexcept { ++num_forwards_within_backward; }
ForwardWithinBackward::~ForwardWithinBackward() { --num_forwards_within_backward; }

}  // namespace trireme::tensor

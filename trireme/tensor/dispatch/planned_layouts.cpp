// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/planned_layouts.h>

#include <trireme/tensor/axis_links.h>

#include <ATen/core/grad_mode.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace trireme::tensor {
namespace {

// Returns true for operators whose layouts are set by their weight. Optimizers and norms of
// gradients use parameters too, but not as weights.
bool uses_weight(std::string_view name) {
  name = name.substr(0, name.find('.'));
  constexpr std::array<std::string_view, 15> kNames = {"aten::linear",
                                                       "aten::matmul",
                                                       "aten::mm",
                                                       "aten::addmm",
                                                       "aten::bmm",
                                                       "aten::baddbmm",
                                                       "aten::mv",
                                                       "aten::bilinear",
                                                       "aten::convolution",
                                                       "aten::_embedding_bag",
                                                       "aten::embedding",
                                                       "aten::native_layer_norm",
                                                       "aten::native_group_norm",
                                                       "aten::native_batch_norm",
                                                       "aten::_fused_rms_norm"};
  return std::ranges::find(kNames, name) != kNames.end();
}

bool fits(const std::string& pattern, const std::string& name) {
  const std::string without_overload = name.substr(0, name.find('.'));
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0 ||
         ::fnmatch(pattern.c_str(), without_overload.c_str(), FNM_NOESCAPE) == 0;
}

const std::vector<PlannedLayouts>* list_of(const DeviceMesh::State& mesh) noexcept {
  const auto* const attached =
      static_cast<const AttachedLinks*>(mesh.attachment.load(std::memory_order_acquire));
  return attached == nullptr ? nullptr : attached->planned_layouts.load(std::memory_order_acquire);
}

}  // namespace

void set_planned_layouts(const DeviceMesh& mesh, std::vector<PlannedLayouts> layouts) {
  static_cast<void>(Layout::replicated(mesh));  // makes the attachment
  auto& attached =
      static_cast<AttachedLinks&>(*mesh.state()->attachment.load(std::memory_order_acquire));
  const std::lock_guard lock(attached.links_mutex);
  const std::vector<PlannedLayouts>* list =
      attached.planned_layouts.load(std::memory_order_relaxed);
  if (list == nullptr ? layouts.empty() : *list == layouts) return;
  list = nullptr;
  if (!layouts.empty()) {
    attached.planned_lists.push_back(
        std::make_shared<const std::vector<PlannedLayouts>>(std::move(layouts)));
    list = attached.planned_lists.back().get();
  }
  attached.planned_layouts.store(list, std::memory_order_release);
  outdate_decisions();
}

const PlannedLayouts* layouts_of_weight(const DeviceMesh::State& mesh,
                                        const c10::TensorImpl* tensor) noexcept {
  const std::vector<PlannedLayouts>* const list = list_of(mesh);
  if (list == nullptr) return nullptr;
  const auto found = std::ranges::find_if(*list, [tensor](const PlannedLayouts& each) {
    return std::ranges::find(each.weights, tensor) != each.weights.end();
  });
  return found == list->end() ? nullptr : &*found;
}

bool has_planned_layouts(const DeviceMesh::State& mesh) noexcept {
  return list_of(mesh) != nullptr;
}

const PlannedLayouts* planned_layouts(const OperatorFacts& facts,
                                      c10::ArrayRef<const DistributedMeta*> inputs) {
  const std::vector<PlannedLayouts>* list = nullptr;
  for (const DistributedMeta* input : inputs) {
    if (input == nullptr) continue;
    if (list == nullptr) list = list_of(*input->layout.mesh_state());
    if (input->as_weight != nullptr && uses_weight(facts.name)) return input->as_weight;
  }
  if (list == nullptr) return nullptr;
  const auto found = std::ranges::find_if(*list, [&](const PlannedLayouts& each) {
    return !each.operators.empty() && fits(each.operators, facts.name);
  });
  return found == list->end() ? nullptr : &*found;
}

bool is_in_forward() {
  return torch::autograd::get_current_graph_task_id() == -1 || at::GradMode::is_enabled();
}

}  // namespace trireme::tensor

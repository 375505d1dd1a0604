// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/on_mesh.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::pipeline {
namespace {

bool is_cut_along(const ParameterLayout& layout, const std::string& axis) {
  return std::ranges::any_of(layout.placements, [&](const auto& placement) {
    return placement.first == axis && placement.second.is_shard();
  });
}

// As it lies in memory: operators that were recorded may view it.
at::Tensor enter(const at::Tensor& tensor, const Layout& replicated) {
  return tensor.is_contiguous() ? from_local(tensor, replicated, tensor.sizes())
                                : distribute(tensor, replicated);
}

at::Tensor leave(const at::Tensor& tensor, const Layout& replicated) {
  return has_layout(tensor) ? to_local(redistribute(tensor, replicated)) : tensor;
}

}  // namespace

void check_shared_work(const Plan& plan) {
  for (const MeshAxis& axis : plan.mesh) {
    if (axis.name == kDataAxis || axis.name == kStageAxis || axis.size == 1) continue;
    const bool is_used = std::ranges::any_of(plan.layouts, [&](const ParameterLayout& layout) {
      return is_cut_along(layout, axis.name);
    });
    if (is_used) continue;
    throw UsageError(join_message("a pipeline cannot have axis ", axis.name, " of ", axis.size,
                                  " ranks, which is neither pipe nor data, and along which no "
                                  "layout cuts anything"),
                     "cut parameters along it in plan.layouts, or take it out of plan.mesh");
  }
  const bool has_other_axes = std::ranges::any_of(plan.mesh, [](const MeshAxis& axis) {
    return axis.name != kDataAxis && axis.name != kStageAxis;
  });
  const auto plain = std::ranges::find(plan.layouts, true, &ParameterLayout::is_plain);
  if (has_other_axes && plain != plan.layouts.end()) {
    throw UsageError(join_message("a pipeline cannot keep ", plain->pattern,
                                  " plain: stages run the operators that were recorded, all of "
                                  "them on distributed tensors"),
                     "leave its parameters out of keep_whole (plan.layouts), where its operators "
                     "have rules, or train by parallelize without an axis pipe");
  }
  if (shares_work(plan) && plan.activation_bytes > 0) {
    throw UsageError(
        "a pipeline cannot have activation_bytes where ranks share the work on a "
        "stage: bytes are counted of whole tensors, and ranks keep parts",
        "name what is computed again in plan.recompute");
  }
}

void check_plain(const std::vector<detail::NamedTensor>& tensors) {
  for (const detail::NamedTensor& item : tensors) {
    if (!has_layout(item.tensor)) continue;
    throw UsageError(join_message("a pipeline cannot have a module of which ", item.name,
                                  " is distributed already, as ", trireme::describe(item.tensor)),
                     "say in plan.mesh and plan.layouts how it is to be, and give a module that "
                     "nobody has distributed");
  }
}

DeviceMesh mesh_of_stages(const DeviceMesh& mesh) {
  std::vector<std::string> others;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const std::string& name = mesh.axis_name(axis);
    if (name != kDataAxis && name != kStageAxis) others.push_back(name);
  }
  return others.empty() ? DeviceMesh() : mesh.submesh(others);
}

std::vector<StageCode> on_mesh(std::vector<StageCode> stages, const DeviceMesh& mesh) {
  if (!mesh.defined()) return stages;
  for (StageCode& code : stages) {
    code.forward = [forward = std::move(code.forward), replicated = Layout::replicated(mesh)](
                       c10::ArrayRef<at::Tensor> inputs, const MicroBatch& micro_batch) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& input : inputs) tensors.push_back(enter(input, replicated));
      tensors = forward(tensors, micro_batch);
      for (at::Tensor& output : tensors) output = leave(output, replicated);
      return tensors;
    };
  }
  return stages;
}

}  // namespace trireme::pipeline

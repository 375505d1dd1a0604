// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/on_mesh.h>

#include <trireme/base/error.h>
#include <trireme/plan/plan.h>
#include <trireme/tensor/distributed_tensor.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::pipeline {
namespace {

// Wraps an input as Replicate, if possible without a copy, because recorded operators may view its
// memory.
at::Tensor enter(const at::Tensor& tensor, const Layout& replicated) {
  return tensor.is_contiguous() ? from_local(tensor, replicated, tensor.sizes())
                                : distribute(tensor, replicated);
}

// Makes an output whole on every rank and returns it as a plain tensor.
at::Tensor leave(const at::Tensor& tensor, const Layout& replicated) {
  return has_layout(tensor) ? to_local(redistribute(tensor, replicated)) : tensor;
}

}  // namespace

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

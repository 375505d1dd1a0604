// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/plan_meshes.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <string>

namespace trireme::detail {
namespace {

// Ranks that work on the same data must draw the same random numbers, for example for dropout.
void share_generator(const comm::Group& group) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  comm::broadcast(state, 0, group, "random generator");
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

PlanMeshes create_meshes(const Plan& plan, const comm::Group& group, const DeviceMesh& mesh) {
  if (!shares_work(plan)) return {.data = group, .mesh = {}, .whole = {}};
  std::vector<MeshAxis> other_axes;
  std::vector<std::string> others;
  bool has_data = false;
  for (const MeshAxis& axis : plan.mesh) {
    has_data = has_data || (axis.name == kDataAxis && axis.size > 1);
    if (axis.name == kDataAxis) continue;
    other_axes.push_back(axis);
    others.push_back(axis.name);
  }
  if (!has_data) {
    // If the mesh has the plan's axes other than `data` and no more, it is used as it is.
    const bool is_theirs = mesh.defined() && mesh.num_axes() == static_cast<int>(others.size());
    const DeviceMesh whole = mesh.defined() ? mesh : DeviceMesh(group, other_axes);
    return {.data = comm::Group::self(),
            .mesh = mesh.defined() && !is_theirs ? mesh.submesh(others) : whole,
            .whole = whole};
  }
  const DeviceMesh whole = mesh.defined() ? mesh : DeviceMesh(group, plan.mesh);
  return {
      .data = whole.group(whole.axis(kDataAxis)), .mesh = whole.submesh(others), .whole = whole};
}

void check_can_distribute(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& item : parameters) {
    if (!item.has_sparse_gradient) continue;
    throw UsageError(join_message("parameter ", item.name,
                                  " has sparse gradients, which distributed tensors "
                                  "do not have"),
                     "make the embedding without sparse, or use a mesh of data alone");
  }
}

void check_can_distribute(torch::nn::Module* module, const std::vector<NamedTensor>& parameters,
                          const DeviceMesh& mesh, const ParameterLayouts& layouts) {
  if (module == nullptr) {
    throw UsageError(join_message("the plan arranges ranks on [", mesh.to_string(),
                                  "] to work on one module together, and was given parameters"),
                     "give parallelize the module");
  }
  check_can_distribute(parameters);
  planned_layouts(*module, mesh, layouts);
}

void distribute(torch::nn::Module& module, const DeviceMesh& mesh,
                const ParameterLayouts& layouts) {
  distribute_module(module, mesh, layouts);
  share_generator(mesh.group());
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Divides the ranks of a plan into those that train on different data, along `data`, and those that
// work on the same data together, over which the module is distributed.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/plan/plan.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// The process group and meshes of a plan.
struct PlanMeshes {
  comm::Group data;  ///< the ranks along the plan's `data` axis
  DeviceMesh mesh;   ///< all other axes; undefined if the plan has none
  DeviceMesh whole;  ///< all axes; kept so that later submeshes belong to the same mesh
};

/// Creates the group and meshes of `plan`. Collective and blocking.
/// @param mesh a mesh with the axes of the plan; if it is undefined, a mesh is created.
PlanMeshes create_meshes(const Plan& plan, const comm::Group& group, const DeviceMesh& mesh = {});

/// Throws UsageError if a parameter has sparse gradients, which distributed tensors do not support.
void check_can_distribute(const std::vector<NamedTensor>& parameters);

/// Throws UsageError if distribute() would refuse the module. Not collective.
void check_can_distribute(torch::nn::Module* module, const std::vector<NamedTensor>& parameters,
                          const DeviceMesh& mesh, const ParameterLayouts& layouts);

/// Distributes parameters and buffers over the mesh as `layouts` says. Then copies the state of the
/// CPU random generator from the mesh's first rank to the others. Collective and blocking.
void distribute(torch::nn::Module& module, const DeviceMesh& mesh, const ParameterLayouts& layouts);

}  // namespace trireme::detail

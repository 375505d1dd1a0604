// SPDX-License-Identifier: Apache-2.0
// How the ranks of a plan stand: those that have other data, and those that work on one part of it
// together, over which the module is distributed.
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

struct PlanMeshes {
  comm::Group data;  ///< along the plan's `data` axis
  DeviceMesh mesh;   ///< of all other axes; not defined where the plan has none
  DeviceMesh whole;  ///< of all axes; kept so that what is arranged alike later is on the same mesh
};

/// Collective, blocking.
/// @param mesh of the plan's axes; not defined: made here.
PlanMeshes create_meshes(const Plan& plan, const comm::Group& group, const DeviceMesh& mesh = {});

/// Throws UsageError for a parameter with sparse gradients.
void check_can_distribute(const std::vector<NamedTensor>& parameters);

/// Distributes parameters and buffers over the mesh as `layouts` says, and gives its ranks the
/// random numbers of the first. Throws UsageError without a module, and for a parameter with sparse
/// gradients. Collective, blocking.
/// @param module may be null.
void distribute(torch::nn::Module* module, const std::vector<NamedTensor>& parameters,
                const DeviceMesh& mesh, const ParameterLayouts& layouts);

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Stages whose work several ranks share: their parameters are distributed tensors, and what goes
// from stage to stage is plain.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>

#include <vector>

namespace trireme::pipeline {

/// Throws UsageError for a tensor that is distributed already.
void check_plain(const std::vector<detail::NamedTensor>& tensors);

/// The ranks that share this rank's work: along all axes but `pipe` and `data`. Not defined where
/// there are no others. Collective over `mesh`, blocking.
DeviceMesh mesh_of_stages(const DeviceMesh& mesh);

/// The same stages, each run on distributed tensors of `mesh`, of which `parameters` are too. What
/// comes in counts as Replicate; what goes out is made whole on every rank. Gradients likewise, so
/// that ranks at the same place of their meshes can exchange both. Running them, and their
/// backward, is collective over the mesh.
/// @param mesh may be not defined: the stages as they are.
std::vector<StageCode> on_mesh(std::vector<StageCode> stages, const DeviceMesh& mesh);

}  // namespace trireme::pipeline

// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism within stages: the parameters of a stage are distributed tensors over the
// ranks that share its work. The tensors between stages are plain and whole.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/pipeline/pipeline_program.h>

#include <vector>

namespace trireme::pipeline {

/// Throws UsageError if a tensor is distributed already.
void check_plain(const std::vector<detail::NamedTensor>& tensors);

/// Returns the mesh of the ranks that share this rank's work: all axes except `pipe` and `data`. It
/// is undefined if there are no other axes. Collective over `mesh`, and blocking.
DeviceMesh mesh_of_stages(const DeviceMesh& mesh);

/// Wraps stages so that they run on distributed tensors of `mesh`, over which their parameters are
/// distributed too. Inputs are taken as Replicate; outputs are redistributed to Replicate and
/// returned as plain tensors. Backward does the same with gradients. So each rank can exchange both
/// with the rank at the same coordinates of the next stage's mesh. Running the stages and their
/// backward is collective over the mesh.
/// @param mesh if undefined, the stages are returned unchanged.
std::vector<StageCode> on_mesh(std::vector<StageCode> stages, const DeviceMesh& mesh);

}  // namespace trireme::pipeline

// SPDX-License-Identifier: Apache-2.0
// The axis of a mesh along which ranks share the rows of a batch and the experts of mixtures
// (docs/design/expert-parallel.md).
#pragma once

#include <trireme/mesh/device_mesh.h>

namespace trireme {

/// The axis along which embeddings and linear layers begin to shard dim 0 of their input, the rows
/// of a batch, if nothing shards it yet. Products of stacked matrices [experts, …] that are sharded
/// along it stay there, so that their inputs and outputs travel instead. Layouts of results never
/// change their values.
inline constexpr const char* kExpertAxis = "expert";

namespace tensor {

/// Returns true if an axis of a mesh is the one along which rows and experts are sharded.
bool shards_experts(const DeviceMesh::State& mesh, int axis) noexcept;

}  // namespace tensor
}  // namespace trireme

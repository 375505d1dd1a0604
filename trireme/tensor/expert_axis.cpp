// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/expert_axis.h>

#include <cstddef>

namespace trireme::tensor {

bool shards_experts(const DeviceMesh::State& mesh, int axis) noexcept {
  return mesh.axes[static_cast<std::size_t>(axis)].name == kExpertAxis;
}

}  // namespace trireme::tensor

// SPDX-License-Identifier: Apache-2.0
// The layouts of a module whose tensors are distributed one after the other, as they get memory.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// The layout of every parameter and buffer of a module, for tensors that are distributed later.
/// See distribute_module(). Not thread-safe.
class ModuleLayouts {
 public:
  /// Creates layouts that distribute nothing.
  ModuleLayouts() = default;

  /// Plans the layouts. Not collective. Throws the same UsageErrors as planned_layouts().
  /// @param module must outlive this.
  /// @param mesh the mesh to distribute over; if it is undefined, nothing is distributed.
  /// @param layouts the placements of parameters by name.
  ModuleLayouts(const torch::nn::Module& module, const DeviceMesh& mesh,
                const ParameterLayouts& layouts);

  /// Returns the mesh, which is undefined if nothing is distributed.
  const DeviceMesh& mesh() const noexcept { return mesh_; }

  /// Distributes those of the module's `tensors` that are plain and have memory, and their
  /// gradients, as distribute_module() does. Ranks must hold the same values. Not collective.
  void distribute(const std::vector<at::Tensor>& tensors) const;

 private:
  DeviceMesh mesh_;
  std::unordered_map<const c10::TensorImpl*, Layout> layouts_;
};

}  // namespace trireme::detail

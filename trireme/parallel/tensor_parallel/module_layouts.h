// SPDX-License-Identifier: Apache-2.0
// The layouts of a module whose tensors become distributed one after the other, as they get memory.
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

/// What distribute_module would give every parameter and buffer of a module. Not thread-safe.
class ModuleLayouts {
 public:
  /// Distributes nothing.
  ModuleLayouts() = default;

  /// Throws UsageError as planned_layouts does. Not collective.
  /// @param mesh may be not defined: distributes nothing then.
  /// @param module must outlive this.
  ModuleLayouts(const torch::nn::Module& module, const DeviceMesh& mesh,
                const ParameterLayouts& layouts);

  /// Not defined where nothing is distributed.
  const DeviceMesh& mesh() const noexcept { return mesh_; }

  /// Turns those of the module's `tensors` that have memory, and are plain, into distributed ones,
  /// and their gradients likewise, as distribute_module does. Ranks must hold the same values. Not
  /// collective.
  void distribute(const std::vector<at::Tensor>& tensors) const;

 private:
  DeviceMesh mesh_;
  std::unordered_map<const c10::TensorImpl*, Layout> layouts_;
};

}  // namespace trireme::detail

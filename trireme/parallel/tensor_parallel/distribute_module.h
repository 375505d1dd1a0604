// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism for unmodified modules. Parameters and buffers become distributed tensors in
// place, and every operator of forward and backward then follows their layouts.
#pragma once

#include <trireme/graph/module_ref.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/layout.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

/// The layout that distribute_module() gave a parameter or buffer.
struct DistributedParameter {
  std::string name;       ///< the first of its names, if modules share it
  Layout layout;          ///< undefined for a plain tensor
  bool is_plain = false;  ///< true: it stays a plain tensor, whole on every rank
};

/// Returns the layout that distribute_module() would give every parameter and buffer, without
/// changing the module. Each tensor is listed once, in the order of named_parameters() and
/// named_buffers(). Throws the same UsageErrors as distribute_module(). Not collective.
std::vector<DistributedParameter> planned_layouts(ConstModuleRef module, const DeviceMesh& mesh,
                                                  const ParameterLayouts& layouts);

/// Turns every parameter and buffer of `module` into a distributed tensor on `mesh`, in place.
///
/// The first of `layouts` whose pattern fits a tensor's name gives its placements. A tensor that no
/// pattern fits is replicated. One that `keep_whole` names stays a plain tensor. If modules share
/// a tensor, a pattern may fit any of its names.
///
/// Every rank must hold the same values before the call: seed all ranks alike, or broadcast.
/// Existing gradients must be equal too, and are distributed likewise. Memory of elements that this
/// rank does not own is freed. Members of modules, optimizers and hooks keep their handles.
///
/// Inputs of the module may be plain tensors, equal on all ranks, or distributed ones. Gradients
/// arrive as distributed tensors. The elementwise optimizers of torch::optim can step them, and
/// clip_grad_norm_ computes the norm over all ranks.
///
/// This call is not collective. The module's forward and backward are collective over the mesh
/// afterwards.
///
/// Throws UsageError, without changing anything, for:
/// - a pattern that fits no name and is not optional,
/// - an axis that the mesh does not have,
/// - a placement that does not fit the tensor, or is Partial,
/// - a shared tensor whose names are given different placements,
/// - a tensor that is distributed already, and a gradient that is distributed already or sparse.
std::vector<DistributedParameter> distribute_module(ModuleRef module, const DeviceMesh& mesh,
                                                    const ParameterLayouts& layouts);

}  // namespace trireme

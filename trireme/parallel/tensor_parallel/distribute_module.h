// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism of an unmodified module: its parameters and buffers become distributed tensors
// in place, and every operator of its forward and backward follows their layouts.
#pragma once

#include <trireme/graph/module_ref.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/layout.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

/// What distribute_module gave a parameter or a buffer.
struct DistributedParameter {
  std::string name;
  Layout layout;
  bool is_plain = false;  ///< kept whole: no distributed tensor; the layout is Replicate
};

/// What distribute_module would give every parameter and buffer, each once, in the order of
/// named_parameters() and named_buffers(). Throws UsageError as it does.
std::vector<DistributedParameter> planned_layouts(ConstModuleRef module, const DeviceMesh& mesh,
                                                  const ParameterLayouts& layouts);

/// Turns every parameter and buffer of `module` into a distributed tensor on `mesh`, in place: the
/// first of `layouts` that fits its name says how, Replicate where none does; those of `keep_whole`
/// stay plain. Of a tensor that modules share, any of its names may fit. Each rank must hold the
/// same values before (seed alike, or broadcast), and the same gradients where there are some,
/// which are cut likewise; what a rank does not own is freed. Members, optimizers and hooks keep
/// their handles. Gradients arrive as distributed tensors, and the elementwise optimizers of
/// torch::optim step them; clip_grad_norm_ gives the norm of all.
///
/// Inputs may be plain tensors, equal on all ranks, or distributed ones. Not collective itself; the
/// module's forward and backward then are, over the mesh. Throws UsageError, having changed
/// nothing, for a pattern that fits no name and is not optional, an axis that the mesh has not, a
/// placement that does not fit a tensor or is Partial, a tensor whose names are given different
/// placements, one that is distributed already, and a gradient that is sparse.
std::vector<DistributedParameter> distribute_module(ModuleRef module, const DeviceMesh& mesh,
                                                    const ParameterLayouts& layouts);

}  // namespace trireme

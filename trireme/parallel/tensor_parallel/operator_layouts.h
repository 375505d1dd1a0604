// SPDX-License-Identifier: Apache-2.0
// Brings the layouts of operators in a plan to the mesh on which they run.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/operator_layouts.h>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// Makes operators on tensors of the mesh run as `layouts` says. Call it before the parameters are
/// distributed. Not collective; all ranks of the mesh must set the same.
/// @param module null if there is none: then layouts may name operators only.
/// @throws UsageError if a pattern for modules fits none with parameters of its own.
void set_operator_layouts(const torch::nn::Module* module, const DeviceMesh& mesh,
                          const OperatorLayouts& layouts);

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Parameters and buffers of a module by name, out and back in. Names are LibTorch's own
// (`layer1.0.conv1.weight`), which are those of Python's state_dict. Gradients and training mode
// are not part of it.
#pragma once

#include <trireme/checkpoint/safetensors.h>
#include <trireme/graph/module_ref.h>

#include <string_view>

namespace torch::nn {
class Module;
}

namespace trireme::checkpoint {

/// Returns every parameter and buffer under its name. The tensors share the module's storage:
/// nothing is copied, and distributed ones are distributed here.
TensorMap module_tensors(ConstModuleRef module);

/// Throws CheckpointError unless `tensors` has exactly the module's names, with its shapes and
/// dtypes: the message names the first parameter, in the module's order, that does not fit, and
/// counts the others. `source` says where the tensors come from.
void check_module_tensors(const TensorMap& tensors, ConstModuleRef module, std::string_view source);

/// Copies the values into the module's own parameters and buffers, whose storage, device, strides
/// and gradients stay. Values for a distributed tensor are whole and plain on every rank, or
/// distributed on the same mesh; other layouts are redistributed, which is collective. Checks first
/// as `check_module_tensors` does, so that on its error nothing has changed.
void load_module_tensors(const TensorMap& tensors, ModuleRef module, std::string_view source);

}  // namespace trireme::checkpoint

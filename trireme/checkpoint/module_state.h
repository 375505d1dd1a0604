// SPDX-License-Identifier: Apache-2.0
// Gets and sets the parameters and buffers of a module by name. Names are LibTorch's own
// (`layer1.0.conv1.weight`), which are those of Python's state_dict. Gradients and training mode
// are not included.
#pragma once

#include <trireme/checkpoint/safetensors.h>
#include <trireme/graph/module_ref.h>

#include <string_view>

namespace torch::nn {
class Module;
}

namespace trireme::checkpoint {

/// Returns every parameter and buffer by name. The tensors share the module's storage, and
/// distributed ones stay distributed.
TensorMap module_tensors(ConstModuleRef module);

/// Throws CheckpointError unless `tensors` has exactly the names of the module, with its shapes and
/// dtypes. The message names the first parameter, in the order of the module, that does not match,
/// and counts the others.
/// @param tensors the tensors to check.
/// @param module the module to match.
/// @param source where the tensors come from, for the message.
void check_module_tensors(const TensorMap& tensors, ConstModuleRef module, std::string_view source);

/// Copies values into the parameters and buffers of a module. Their storage, device, strides and
/// gradients stay the same.
///
/// Values for a distributed tensor are either plain and whole on every rank, or distributed on the
/// same mesh. Values of another layout are redistributed, which is collective. Checks first like
/// check_module_tensors(), so that nothing is changed on error.
void load_module_tensors(const TensorMap& tensors, ModuleRef module, std::string_view source);

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Saves and loads checkpoints as dicts of tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Adds `load_checkpoint` and `save_checkpoint` to the extension module.
void bind_checkpoint(pybind11::module_& module);

}  // namespace trireme::python

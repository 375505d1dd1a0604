// SPDX-License-Identifier: Apache-2.0
// Searches for the plan of a training that is written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Adds the classes of results and the function `find_plan` to the extension module.
void bind_search(pybind11::module_& module);

}  // namespace trireme::python

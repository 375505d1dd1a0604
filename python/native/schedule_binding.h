// SPDX-License-Identifier: Apache-2.0
// Makes pipeline schedules for Python: their text, times and pictures.
#pragma once

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Adds the class Schedule and the functions that make one to the extension module.
void bind_schedule(pybind11::module_& module);

}  // namespace trireme::python

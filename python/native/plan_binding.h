// SPDX-License-Identifier: Apache-2.0
// Makes Plan a class of Python, with the names of its TOML file as keyword arguments and
// attributes.
#pragma once

#include <trireme/plan/plan.h>

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Adds the class to the extension module.
void bind_plan(pybind11::module_& module);

}  // namespace trireme::python

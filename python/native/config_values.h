// SPDX-License-Identifier: Apache-2.0
// Converts between values of Python and those of a configuration, so that structs that describe
// their fields (base/config/fields.h) can be made of keyword arguments.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/base/config/value.h>

#include <pybind11/pybind11.h>

#include <string>

namespace trireme::python {

/// Sets fields from keyword arguments. Throws ConfigError that lists all problems, with the nearest
/// name for an unknown one, and UsageError for a value of a type that no field has.
/// @param call the name of what has these arguments, for messages.
void set_fields(config::Fields& fields, const pybind11::dict& arguments, const std::string& call);

/// Returns a value as Python has it: a list, a tuple within a list, a dict, a str or a number.
pybind11::object object_of(const config::Value& value);

}  // namespace trireme::python

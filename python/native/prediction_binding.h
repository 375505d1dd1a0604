// SPDX-License-Identifier: Apache-2.0
// Predicts the training step of a module of Python.
#pragma once

#include <trireme/predict/predict.h>

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Returns the options that keyword arguments give. Throws ConfigError for others, with the nearest
/// name.
predict::TrainingOptions training_options(const pybind11::dict& arguments);

/// Adds the classes of predictions and the function `predict` to the extension module.
void bind_prediction(pybind11::module_& module);

}  // namespace trireme::python

// SPDX-License-Identifier: Apache-2.0
// ModelOptions and FitOptions as parts of a program's configuration: their plain settings, the plan
// as a table `plan`, and `autocast` as "bfloat16", "float16" or "none". The program itself sets the
// group, metrics and callbacks.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/plan/plan_config.h>
#include <trireme/train/model.h>

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace trireme {

/// Adds the settings of a model to `fields`.
void describe(config::Fields& fields, ModelOptions& options);
/// Adds the settings of a training to `fields`.
void describe(config::Fields& fields, FitOptions& options);
/// Adds the settings of a loss scale to `fields`.
void describe(config::Fields& fields, LossScaleOptions& options);

}  // namespace trireme

/// Reads and writes floating-point types by their names in Python.
template <>
struct trireme::config::Codec<at::ScalarType> {
  static std::string expected();
  static std::optional<at::ScalarType> parse(const Value& value);
  static Value write(at::ScalarType type);
};

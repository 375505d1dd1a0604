// SPDX-License-Identifier: Apache-2.0
// Makes Plan a part of a program's configuration. Its fields have their own names. `wire` is
// "as_is", "fp16" or "bf16", `gradient_reduction` is "mean" or "sum", and ZeRO levels of modules
// are written as `zero_level_of = [["embedding", 3]]`.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/plan/plan.h>

namespace trireme {

/// Returns the names of GradientReduction.
config::EnumNames<GradientReduction> enum_names(GradientReduction reduction);
/// Returns the names of GradientCompression.
config::EnumNames<GradientCompression> enum_names(GradientCompression wire);

/// Describes the fields of a plan. Only limits that do not depend on the number of ranks are
/// checked; `validate` checks the others.
void describe(config::Fields& fields, Plan& plan);

/// A configuration that is a plan alone, such as a file with a plan.
struct PlanSettings {
  Plan plan;
  void fields(config::Fields& fields) { describe(fields, plan); }
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Makes Plan a part of a program's configuration. Its fields have their own names. `mode` is
// "manual" or "auto", `wire` is
// "as_is", "fp16" or "bf16", `gradient_reduction` is "mean" or "sum", and ZeRO levels of modules
// are written as `zero_level_of = [["embedding", 3]]`.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/plan/plan.h>

#include <string>
#include <string_view>

namespace trireme {

/// Returns the names of PlanMode: "manual" and "auto".
config::EnumNames<PlanMode> enum_names(PlanMode mode);
/// Returns the names of SequenceAttention.
config::EnumNames<SequenceAttention> enum_names(SequenceAttention attention);
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

/// Returns the plan as TOML, which reads back as the same plan. Throws ConfigError as
/// config::Configuration::to_toml.
std::string to_toml(const Plan& plan);

/// Returns the plan without everything that a search for plans finds, of mode kAutomatic.
Plan automatic_of(Plan plan);

/// Returns the plan that TRIREME_PLAN gives in place of the program's: automatic_of() that one for
/// `auto`, and otherwise the one in a TOML file. Returns the program's plan if the variable is not
/// set. Not collective. Throws ConfigError.
Plan requested_plan(const Plan& of_program);

namespace detail {
/// Throws UsageError if TRIREME_PLAN is set and nothing in this process has called
/// requested_plan(): it would have no effect. `what` is what carries out a plan.
void check_request_is_used(std::string_view what);
}  // namespace detail

}  // namespace trireme

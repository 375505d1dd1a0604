// SPDX-License-Identifier: Apache-2.0
// Plan as a part of a program's configuration: its fields under their own names, `wire` as "as_is",
// "fp16" or "bf16", `gradient_reduction` as "mean" or "sum", ZeRO levels of modules as
// `zero_level_of = [["embedding", 3]]`.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/plan/plan.h>

namespace trireme {

config::EnumNames<GradientReduction> enum_names(GradientReduction reduction);
config::EnumNames<GradientCompression> enum_names(GradientCompression wire);

/// Limits are those that do not depend on the number of ranks; `validate` sees to the others.
void describe(config::Fields& fields, Plan& plan);

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Which plans can be predicted.
#pragma once

#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan.h>

#include <cstdint>

namespace trireme::predict {

/// Returns the number of ranks of a plan, which is the product of the sizes of its mesh.
std::int64_t ranks_of(const Plan& plan);

/// Returns how a plan is carried out: as a TrainingStep where only that can.
PlanUse use_of(const Plan& plan);

/// Throws UsageError for a plan without a mesh, for one that is not valid for its number of ranks,
/// and for one that no run carries out.
void check_predictable(const Plan& plan);

}  // namespace trireme::predict

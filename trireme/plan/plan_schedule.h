// SPDX-License-Identifier: Apache-2.0
// The schedule by which a plan is carried out. Runs and predictions take it from here.
#pragma once

#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

namespace trireme {

/// Returns the schedule of a TrainingStep: the plan's own, or one of its kind over the ranks along
/// `pipe`. It has as many stages as plan.stages names, otherwise as plan.chunks says, and the
/// copies of offload_activations. Throws UsageError as own_schedule() and schedule::generate(), and
/// if named stages do not divide by the ranks.
/// @param micro_batches of a step, 1 or more; fewer than those of an own schedule if it has more.
/// @param is_evaluation true for forward alone, in which nothing is offloaded.
schedule::Schedule plan_schedule(const Plan& plan, int micro_batches, bool is_evaluation = false);

}  // namespace trireme

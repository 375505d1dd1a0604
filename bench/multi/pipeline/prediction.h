// SPDX-License-Identifier: Apache-2.0
// What the timeline of a schedule says that a step takes, from the mean times of its actions.
#pragma once

#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <vector>

namespace bench {

/// Returns the times of the actions of these steps, with those of the optimizer.
/// @param schedule of the steps, with its messages
/// @param optimizer_times of each rank in each step, in milliseconds: zero_grad() and step()
trireme::schedule::Times measured_times(const trireme::schedule::Schedule& schedule,
                                        const std::vector<trireme::pipeline::StepReport>& reports,
                                        const std::vector<std::vector<double>>& optimizer_times);

/// Returns milliseconds from the first action of a step, the optimizer's included, to the last.
double predicted_step_time(const trireme::schedule::Schedule& schedule,
                           const trireme::schedule::Times& times);

}  // namespace bench

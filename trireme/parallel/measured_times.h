// SPDX-License-Identifier: Apache-2.0
// measured_times(): turns reports of real steps into the times that schedule::simulate predicts
// schedules from, and that schedule::search looks for schedules with.
#pragma once

#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <vector>

namespace trireme::pipeline {

/// Returns the mean times of the actions of these steps, by stage, and of their messages, by edge
/// of the schedule. All times are in milliseconds. The time of a message is measured where the
/// receiver waited for it; the time of a receive where the message had arrived before. A stage
/// whose backward never ran in two parts gets half of its time for each part. To measure the real
/// division, use steps of `zb-h1`.
///
/// The result is for schedule::simulate and, together with StepReport::stage_bytes, for
/// schedule::search. Throws UsageError if `reports` is empty or is from steps of another schedule.
/// @param schedule the schedule of these steps (TrainingStep::schedule), including messages.
/// @param reports the reports of one step or more.
schedule::Times measured_times(const schedule::Schedule& schedule,
                               const std::vector<StepReport>& reports);

}  // namespace trireme::pipeline

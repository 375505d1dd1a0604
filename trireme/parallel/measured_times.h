// SPDX-License-Identifier: Apache-2.0
// From what steps really did to what a schedule can be searched for and predicted by.
#pragma once

#include <trireme/parallel/pipeline/program/step_report.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <vector>

namespace trireme::pipeline {

/// Returns the mean times of the actions of these steps, in milliseconds, and of their messages, by
/// edge: messages for which the receiver waited say how long one takes, those that were there
/// before how long a receive does. Stages whose backward was never in two parts get half of it for
/// each: steps of `zb-h1` say how it really divides. For schedule::simulate, and for
/// schedule::search together with StepReport::stage_bytes.
///
/// Throws UsageError for no reports, and for those of steps of another schedule.
/// @param schedule that the steps had (TrainingStep::schedule), with its messages.
schedule::Times measured_times(const schedule::Schedule& schedule,
                               const std::vector<StepReport>& reports);

}  // namespace trireme::pipeline

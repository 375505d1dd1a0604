// SPDX-License-Identifier: Apache-2.0
// A timeline in the Trace Event Format of Chrome, in the form of the traces of real runs
// (docs/formats/run.md), so that plan and run can be looked at side by side.
#pragma once

#include <trireme/schedule/timeline.h>

#include <string>

namespace trireme::schedule {

/// Returns a closed array of events: for each rank a process, in it the row `steps` with the whole
/// step and the row `phases` with every action that takes time, with its stage and micro-batch.
/// Times in microseconds.
std::string to_trace(const Timeline& timeline);

}  // namespace trireme::schedule

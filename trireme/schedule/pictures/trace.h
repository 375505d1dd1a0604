// SPDX-License-Identifier: Apache-2.0
// Writes a timeline in the Trace Event Format of Chrome. It has the same form as traces of real
// runs (docs/formats/run.md), so that plan and run can be compared.
#pragma once

#include <trireme/schedule/timeline.h>

#include <string>

namespace trireme::schedule {

/// Returns a complete array of events. Each rank is a process with two rows: `steps` contains the
/// whole step, and `phases` every action that takes time, with its stage and micro-batch. Times are
/// in microseconds.
std::string to_trace(const Timeline& timeline);

}  // namespace trireme::schedule

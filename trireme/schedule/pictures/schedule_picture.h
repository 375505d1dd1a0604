// SPDX-License-Identifier: Apache-2.0
// Draws a schedule, with ranks as rows and time from left to right, and writes a timeline in the
// Trace Event Format of Chrome. That has the same form as traces of real runs
// (docs/formats/run.md), so that plan and run can be compared.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/timeline.h>

#include <string>

namespace trireme::schedule {

/// Returns a self-contained SVG, which is light or dark as the reader prefers. Each action that
/// takes time is a box with the number of its micro-batch. The colour shows the kind, and later
/// chunks of a rank are paler. The tooltip describes the action and its time. The header shows the
/// name, the step time, the bubble and the number of micro-batches kept. The same input always
/// gives the same text.
std::string to_svg(const Schedule& schedule, const Timeline& timeline);

/// Returns a complete array of events. Each rank is a process with two rows: `steps` contains the
/// whole step, and `phases` every action that takes time, with its stage and micro-batch. Times are
/// in microseconds.
std::string to_trace(const Timeline& timeline);

}  // namespace trireme::schedule

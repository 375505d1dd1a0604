// SPDX-License-Identifier: Apache-2.0
// What a run comes to: how it ended and its largest and last numbers, as tiles at the top of the
// page.
#pragma once

#include <trireme/report/page/run_log.h>

#include <string>

namespace trireme::report {

/// Returns `12.5 %`.
std::string percent(double share);

/// Sums a phase (or the total) over the steps of a rank, seconds.
double sum_of(const RankLog& rank, double (*seconds)(const PhaseSeconds& seconds));

/// Returns the wall clock of the steps of a rank, seconds.
double total_of(const RankLog& rank);

/// Returns the tiles as HTML.
std::string tiles_of(const RunLog& run);

}  // namespace trireme::report

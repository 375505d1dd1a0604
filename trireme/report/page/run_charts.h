// SPDX-License-Identifier: Apache-2.0
// Selects the charts of a run and computes their series.
#pragma once

#include <trireme/report/page/chart.h>
#include <trireme/report/page/run_log.h>

#include <array>
#include <string_view>
#include <vector>

namespace trireme::report {

/// A phase of a step, with a function that returns its time.
struct Phase {
  std::string_view name;                           ///< the name of the phase
  double (*seconds)(const PhaseSeconds& seconds);  ///< returns the time of the phase
};

/// Returns the phases: data, forward, backward, communication, optimizer, callbacks, and the time
/// between them.
const std::array<Phase, 7>& phases();

/// Returns the curves over steps: loss, evaluations, learning rate, gradient norm, throughput,
/// memory, and what callbacks logged. There is one curve per rank for up to sixteen ranks, or a
/// single one if all ranks are equal. For more ranks, the mean is drawn between the lowest and the
/// highest value. Charts without any record are left out.
std::vector<Chart> curves_of(const RunLog& run);

/// Returns the time of steps by phase, as one stacked chart per rank, all with the same scale.
/// Shows at most eight ranks, including the slowest and the fastest.
std::vector<Chart> time_charts_of(const RunLog& run);

}  // namespace trireme::report

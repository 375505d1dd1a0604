// SPDX-License-Identifier: Apache-2.0
// The charts of a run.
#pragma once

#include <trireme/report/page/chart.h>
#include <trireme/report/page/run_log.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

/// A part of a step's time.
struct Phase {
  std::string_view name;
  double (*seconds)(const PhaseSeconds& seconds);
};

/// Data, forward, backward, communication, optimizer, callbacks, and what is between them.
const std::array<Phase, 7>& phases();

/// Curves over steps: loss, evaluations, learning rate, gradient norm, throughput, memory, what
/// callbacks logged. A curve for each rank up to sixteen, one for all where they are equal; above,
/// their mean between the lowest and the highest. Those that nothing was recorded for are left out.
std::vector<Chart> curves_of(const RunLog& run);

/// The time of a step by phases, one stacked chart for each rank, all on one scale; of at most
/// eight ranks, those with the longest and the shortest times among them.
std::vector<Chart> time_charts_of(const RunLog& run);

}  // namespace trireme::report

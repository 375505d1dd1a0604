// SPDX-License-Identifier: Apache-2.0
// How evenly the experts of mixtures were used, from the counts that CountMonitor logs of buffers
// `tokens_taken` and `tokens_dropped` (docs/guide/expert-parallel.md).
#pragma once

#include <trireme/report/page/axis.h>
#include <trireme/report/page/run_log.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// The use of the experts of one mixture, by global step.
struct ExpertBalance {
  std::string mixture;  ///< its name, such as `blocks.1.mixture`
  /// The tokens of the busiest expert, as a multiple of an even share. Steps in which no expert
  /// took a token are left out.
  std::vector<Point> busiest{};
  /// The share of choices that no expert took. Empty if they were not counted.
  std::vector<Point> dropped{};
};

/// Returns the mixtures of a run, by name. Counts are sums over all ranks, so those of one rank are
/// taken.
std::vector<ExpertBalance> expert_balance_of(const RunLog& run);

/// Numbers over all mixtures.
struct MeanBalance {
  double busiest = 0;               ///< the mean of ExpertBalance::busiest
  std::optional<double> dropped{};  ///< the mean of ExpertBalance::dropped, if counted
};

/// Returns the means over mixtures, and over the steps of the last epoch that has counts;
/// std::nullopt for a run without counts.
std::optional<MeanBalance> last_balance_of(const RunLog& run);

/// Returns the mean over mixtures of each step.
std::vector<Point> mean_over_mixtures(const std::vector<ExpertBalance>& mixtures,
                                      std::vector<Point> ExpertBalance::* points);

}  // namespace trireme::report

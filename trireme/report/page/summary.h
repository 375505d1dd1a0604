// SPDX-License-Identifier: Apache-2.0
// What a run comes to: how it ended and its largest and last numbers, as tiles at the top of the
// page.
#pragma once

#include <trireme/report/page/run_log.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::report {

/// The numbers of the tiles, over all ranks.
struct Summary {
  std::int64_t last_step = 0;
  std::int64_t last_epoch = 0;
  std::int64_t epochs = 0;
  double longest = 0;  ///< seconds in steps, of the rank that took longest
  double samples = 0;
  /// Samples of all ranks in one step: the mean over the steps. 0 where no step was recorded.
  double batch = 0;
  double waited = 0;   ///< seconds waiting for other ranks, sum of all ranks
  double starved = 0;  ///< seconds waiting for data, sum of all ranks
  double total = 0;    ///< seconds in steps, sum of all ranks
  double peak_bytes = 0;
  std::int64_t skipped = 0;
  std::optional<double> loss;
  std::optional<EvaluationRecord> last_evaluation;
  std::optional<double> best_accuracy;
  std::optional<double> best_loss;
};

Summary summary_of(const RunLog& run);

/// How a run ended, in a word, with what explains it and the class of the style sheet.
struct RunStatus {
  std::string text;
  std::string below;
  const char* style;
};

RunStatus status_of(const RunLog& run);

/// Returns `1.50 GiB`.
std::string bytes_text(double bytes);

/// Returns a setting as people read it: the value of a name that ends with `_bytes` in a larger unit
/// (`24.00 GiB` for `25769803776`), any other value as it is.
std::string value_text(const std::string& name, const std::string& value);

/// Returns `12.5 %`.
std::string percent(double share);

/// Sums a phase (or the total) over the steps of a rank, seconds.
double sum_of(const RankLog& rank, double (*seconds)(const PhaseSeconds& seconds));

/// Returns the wall clock of the steps of a rank, seconds.
double total_of(const RankLog& rank);

/// Returns the tiles as HTML.
std::string tiles_of(const RunLog& run);

}  // namespace trireme::report

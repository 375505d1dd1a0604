// SPDX-License-Identifier: Apache-2.0
// Summarises a run: how it ended, and its largest and last numbers, shown as tiles at the top of
// the page.
#pragma once

#include <trireme/report/page/expert_balance.h>
#include <trireme/report/page/run_log.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::report {

/// The numbers of the tiles, over all ranks.
struct Summary {
  std::int64_t last_step = 0;   ///< the last global step
  std::int64_t last_epoch = 0;  ///< the last epoch that has begun
  std::int64_t epochs = 0;      ///< the number of epochs that the run was to have
  double longest = 0;           ///< seconds in steps of the slowest rank
  double samples = 0;           ///< the number of samples of all ranks
  /// The mean number of samples of all ranks per step. 0 if no step was recorded.
  double batch = 0;
  double waited = 0;           ///< seconds of waiting for other ranks, summed over all ranks
  double starved = 0;          ///< seconds of waiting for data, summed over all ranks
  double total = 0;            ///< seconds in steps, summed over all ranks
  double peak_bytes = 0;       ///< the maximum resident memory of a rank
  std::int64_t skipped = 0;    ///< steps skipped because gradients overflowed
  std::optional<double> loss;  ///< the mean training loss of the last epoch
  std::optional<EvaluationRecord> last_evaluation;  ///< the last evaluation
  std::optional<double> best_accuracy;              ///< the best accuracy of all evaluations
  std::optional<double> best_loss;                  ///< the best loss of all evaluations
  std::optional<double> tokens_per_second;          ///< of all ranks, if a sample's are known
  std::optional<double> flops_per_second;           ///< of the model on all ranks, likewise
  std::optional<double> utilization;  ///< flops_per_second as a share of the peak, if that is known
  std::optional<MeanBalance> balance;  ///< of experts, in the last epoch
};

Summary summary_of(const RunLog& run);

/// The way a run ended.
struct RunStatus {
  std::string text;   ///< the status in one word
  std::string below;  ///< an explanation
  const char* style;  ///< the CSS class
};

/// Returns the way a run ended.
RunStatus status_of(const RunLog& run);

/// Returns a number of bytes for people, such as `1.50 GiB`.
std::string bytes_text(double bytes);

/// Returns a number of FLOP/s for people, such as `1.50 TFLOP/s`.
std::string flops_text(double per_second);

/// Returns a setting as people read it: the value of a name that ends with `_bytes` in a larger
/// unit
/// (`24.00 GiB` for `25769803776`), any other value as it is.
std::string value_text(const std::string& name, const std::string& value);

/// Returns a share of 1 in percent, such as `12.5 %`.
std::string percent(double share);

/// Returns the time in seconds that a rank spent in a phase (or in total), summed over its steps.
double sum_of(const RankLog& rank, double (*seconds)(const PhaseSeconds& seconds));

/// Returns the wall-clock time in seconds of all steps of a rank.
double total_of(const RankLog& rank);

/// Returns the tiles of a run as HTML.
std::string tiles_of(const RunLog& run);

}  // namespace trireme::report

// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/faults.h>

#include <trireme/base/error.h>
#include <trireme/predict/prediction.h>

#include <algorithm>
#include <cmath>

namespace trireme::predict {
namespace {

void check(const FaultOptions& options) {
  if (!(options.host_failure_seconds > 0) || options.hosts < 1) {
    throw UsageError(join_message("failures of ", options.hosts, " hosts every ",
                                  options.host_failure_seconds, " s cannot be predicted"),
                     "there is at least one host, and the time between its failures is above 0");
  }
  for (const double time : {options.detect_seconds, options.restart_seconds, options.load_seconds,
                            options.save_seconds, options.interval_seconds}) {
    if (time >= 0 && std::isfinite(time)) continue;
    throw UsageError(join_message("a time of ", time, " s in the options of faults"),
                     "times are 0 or more");
  }
}

double failure_seconds(const FaultOptions& options) {
  return options.host_failure_seconds / static_cast<double>(options.hosts);
}

double recovery_seconds(const FaultOptions& options) {
  return options.detect_seconds + options.restart_seconds + options.load_seconds;
}

// The share of useful time for an interval: the expected time to finish a segment of work and its
// checkpoint, if each failure costs the recovery and the work since the last checkpoint.
double share_of(const FaultOptions& options, double interval) {
  const double mean = failure_seconds(options);
  const double segment = interval + options.save_seconds;
  const double expected =
      mean * std::exp(recovery_seconds(options) / mean) * std::expm1(segment / mean);
  return std::isfinite(expected) ? interval / expected : 0;
}

double daly(double save, double mean) {
  if (save >= 2 * mean) return mean;
  const double ratio = save / (2 * mean);
  return std::sqrt(2 * save * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - save;
}

// The share has one maximum. Golden-section search in the logarithm of the interval.
double best_interval(const FaultOptions& options) {
  const double mean = failure_seconds(options);
  constexpr double kGolden = 0.6180339887498949;
  double low = std::log(mean * 1e-9);
  double high = std::log(mean * 10);
  constexpr int kSteps = 100;
  for (int i = 0; i < kSteps; ++i) {
    const double left = high - kGolden * (high - low);
    const double right = low + kGolden * (high - low);
    if (share_of(options, std::exp(left)) < share_of(options, std::exp(right))) {
      low = left;
    } else {
      high = right;
    }
  }
  return std::exp((low + high) / 2);
}

}  // namespace

FaultPrediction predict_faults(const FaultOptions& options) {
  check(options);
  FaultPrediction prediction;
  const double mean = failure_seconds(options);
  prediction.failure_seconds = mean;
  prediction.young_interval = std::sqrt(2 * options.save_seconds * mean);
  prediction.daly_interval = daly(options.save_seconds, mean);
  prediction.best_interval = best_interval(options);
  prediction.interval =
      options.interval_seconds > 0 ? options.interval_seconds : prediction.best_interval;
  prediction.useful_share = share_of(options, prediction.interval);
  prediction.saving_share = prediction.useful_share * options.save_seconds / prediction.interval;
  prediction.lost_share = std::max(0.0, 1 - prediction.useful_share - prediction.saving_share);
  return prediction;
}

FaultOptions fault_options(const Prediction& prediction, const cluster::Cluster& cluster) {
  constexpr double kSecondsPerHour = 3600;
  FaultOptions options = {.hosts = 0};
  double failures_per_hour = 0;
  const cluster::Cluster used = cluster.with_ranks(prediction.ranks);
  for (const cluster::Hosts& hosts : used.hosts) {
    options.hosts += hosts.count;
    if (hosts.failure_hours <= 0) continue;
    failures_per_hour += static_cast<double>(hosts.count) / hosts.failure_hours;
  }
  if (failures_per_hour > 0) {
    options.host_failure_seconds =
        static_cast<double>(options.hosts) * kSecondsPerHour / failures_per_hour;
  }
  if (prediction.checkpoint_seconds > 0) {
    options.save_seconds = prediction.checkpoint_seconds;
    options.load_seconds = prediction.checkpoint_seconds;
  }
  return options;
}

}  // namespace trireme::predict

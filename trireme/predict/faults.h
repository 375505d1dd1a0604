// SPDX-License-Identifier: Apache-2.0
// Predicts what failures cost a long training: how often they come, how often to save, and the
// share of time that remains for training. The options come from a prediction and from the
// description of a cluster.
#pragma once

#include <trireme/cluster/cluster.h>

#include <cstdint>

namespace trireme::predict {

struct Prediction;

/// What decides the cost of failures. All times are in seconds.
struct FaultOptions {
  double host_failure_seconds = 0;  ///< mean time between two failures of one host
  std::int64_t hosts = 1;           ///< number of hosts; the training stops if one of them fails
  double detect_seconds = 60;       ///< from a failure until it is noticed
  double restart_seconds = 300;     ///< until the ranks run again, with another host
  double load_seconds = 60;         ///< until the last checkpoint is loaded
  /// How long training stands still while a checkpoint is saved. Asynchronous saving stops it only
  /// for the copy.
  double save_seconds = 60;
  /// The interval between two checkpoints; 0: the best one is used.
  double interval_seconds = 0;
};

/// What failures cost.
struct FaultPrediction {
  double failure_seconds = 0;  ///< mean time between two failures of the training
  double young_interval = 0;   ///< Young's first-order estimate of the best interval
  double daly_interval = 0;    ///< Daly's higher-order estimate
  double best_interval = 0;    ///< the interval with the largest share, found numerically
  double interval = 0;         ///< the interval that the share is for
  double useful_share = 0;     ///< share of time that is training that counts, between 0 and 1
  double saving_share = 0;     ///< share of time spent saving
  double lost_share = 0;       ///< share of time lost to failures: repeated work and restarts
};

/// Returns the prediction for failures that come independently of each other (exponentially
/// distributed), also during restart. Sources: Young, "A first order approximation to the optimum
/// checkpoint interval" (1974); Daly, "A higher order estimate of the optimum checkpoint interval
/// for restart dumps" (2006), whose complete model (equation 13) gives the share. Throws UsageError
/// for negative times, no hosts, or a time between failures of 0.
FaultPrediction predict_faults(const FaultOptions& options);

/// Returns options for predict_faults(): the hosts of the prediction's ranks, the mean time between
/// failures of one of them by the description's `failure_hours`, and for saving and loading the
/// time in which all hosts write a checkpoint at once. If no host is said to fail,
/// `host_failure_seconds` is 0; without `disk_gb_per_s`, saving and loading have their defaults.
/// Throws UsageError if the cluster has fewer devices than the prediction has ranks.
FaultOptions fault_options(const Prediction& prediction, const cluster::Cluster& cluster);

}  // namespace trireme::predict

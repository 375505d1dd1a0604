// SPDX-License-Identifier: Apache-2.0
// What a prediction and the description of a cluster tell about failures.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/predict/faults.h>
#include <trireme/predict/prediction.h>

namespace trireme::predict {

/// Returns options for predict_faults(): the hosts of the prediction's ranks, the mean time between
/// failures of one of them by the description's `failure_hours`, and for saving and loading the
/// time in which all hosts write a checkpoint at once. If no host is said to fail,
/// `host_failure_seconds` is 0; without `disk_gb_per_s`, saving and loading have their defaults.
/// Throws UsageError if the cluster has fewer devices than the prediction has ranks.
FaultOptions fault_options(const Prediction& prediction, const cluster::Cluster& cluster);

}  // namespace trireme::predict

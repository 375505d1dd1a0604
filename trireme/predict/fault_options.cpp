// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/fault_options.h>

namespace trireme::predict {

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

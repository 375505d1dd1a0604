// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/step_costs.h>

#include <trireme/cluster/operator_time.h>

#include <algorithm>

namespace trireme::predict {

StepCosts::StepCosts(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
                     const TrainingOptions& options, const RankGroups& groups)
    : record_(record),
      plan_(plan),
      cluster_(cluster),
      options_(options),
      groups_(groups),
      data_ranks_(data_ranks_of(plan)),
      compute_(record.calls.size()),
      layouts_(record.calls.size()) {
  const cluster::DeviceKind& device = groups.slowest_device(0);
  for (int call = 0; call < record.num_calls(); ++call) {
    set_device(call, device);
    double& layouts = layouts_[static_cast<std::size_t>(call)];
    double overlapping = 0;
    double hidden = 0;  // at most
    for (const Transfer& transfer : record.call(call).transfers) {
      const double seconds = groups.seconds(transfer.axis, transfer.collective, transfer.bytes);
      if (transfer.overlaps) {
        const auto ranks = static_cast<double>(groups.size(transfer.axis));
        overlapping += seconds;
        hidden = compute(call) * (ranks - 1) / ranks;
      } else {
        layouts += seconds;
      }
    }
    layouts += std::max(0.0, overlapping - hidden);
  }
}

// A gradient is copied to the bucket in which ranks exchange it, or added to that of earlier
// micro-batches.
double StepCosts::sum_seconds(const OperatorCall& call, const cluster::DeviceKind& device) const {
  const double reads = plan_.micro_batches > 1 ? 2 : 1;
  if (call.gradient_bytes <= 0 || (data_ranks_.all == 1 && plan_.micro_batches <= 1)) return 0;
  return cluster::seconds(device, {.bytes = (reads + 1) * call.gradient_bytes});
}

void StepCosts::set_device(int number, const cluster::DeviceKind& device) {
  const OperatorCall& call = record_.call(number);
  cluster::OperatorWork work = call.work;
  if (work.flops <= 0 && work.bytes <= 0) return;
  if (options_.allows_tf32 && work.dtype == "float32" && device.teraflops.tf32 > 0) {
    work.dtype = "tf32";
  }
  compute_[static_cast<std::size_t>(number)] =
      cluster::seconds(device, work,
                       cluster::measured_operator(cluster_, device.name, call.name, work)) +
      sum_seconds(call, device);
}

double StepCosts::gradient_layouts(const std::vector<int>& parameters) const {
  double seconds = 0;
  for (const auto& [parameter, transfer, copy_bytes] : record_.gradient_transfers) {
    if (std::ranges::find(parameters, parameter) == parameters.end()) continue;
    seconds += groups_.seconds(transfer.axis, transfer.collective, transfer.bytes);
  }
  return seconds;
}

double StepCosts::gather_seconds(const Bucket& bucket) const {
  return exchange_seconds(groups_, gather_of(bucket, data_ranks_));
}

double StepCosts::reduce_seconds(const Bucket& bucket) const {
  double seconds = 0;
  for (const BucketExchange& exchange : reductions_of(bucket, data_ranks_)) {
    seconds += exchange_seconds(groups_, exchange);
  }
  return seconds;
}

}  // namespace trireme::predict

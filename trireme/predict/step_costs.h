// SPDX-License-Identifier: Apache-2.0
// The times of the calls of a record and of the exchanges along `data`, on the devices and links of
// a cluster.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/buckets.h>
#include <trireme/predict/predict.h>

#include <cstdint>
#include <vector>

namespace trireme::predict {

/// The times of one step, in seconds. Refers to its arguments, which must outlive it.
class StepCosts {
 public:
  /// Times all calls on the devices of the first coordinate along `pipe`.
  StepCosts(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
            const TrainingOptions& options, const RankGroups& groups);

  const ModuleRecord& record() const noexcept { return record_; }
  const Plan& plan() const noexcept { return plan_; }
  const TrainingOptions& options() const noexcept { return options_; }
  /// Returns the number of ranks along `data`.
  std::int64_t data_ranks() const noexcept { return data_ranks_.all; }
  /// Returns the number of ranks over which ZeRO shards.
  std::int64_t shard_ranks() const noexcept { return data_ranks_.shard; }

  /// Times a call on another kind of device.
  void set_device(int call, const cluster::DeviceKind& device);

  /// Returns the time of the operator of a call, and of adding or copying the gradients of
  /// parameters that it makes.
  double compute(int call) const { return compute_[static_cast<std::size_t>(call)]; }
  /// Returns the time of the collectives of a call along axes of layouts.
  double layouts(int call) const { return layouts_[static_cast<std::size_t>(call)]; }
  /// Returns both together.
  double seconds(int call) const { return compute(call) + layouts(call); }

  /// Returns the time to bring gradients to the layouts of their parameters, once in a step.
  /// @param parameters of a stage, in ascending order.
  double gradient_layouts(const std::vector<int>& parameters) const;
  /// Returns the time to gather the parameters of a bucket.
  double gather_seconds(const Bucket& bucket) const;
  /// Returns the time to reduce the gradients of a bucket.
  double reduce_seconds(const Bucket& bucket) const;
  /// Returns the share of computing power that exchanges along `data` take.
  double exchange_share() const { return groups_.compute_share(kDataAxis); }

 private:
  double sum_seconds(const OperatorCall& call, const cluster::DeviceKind& device) const;

  const ModuleRecord& record_;
  const Plan& plan_;
  const cluster::Cluster& cluster_;
  const TrainingOptions& options_;
  const RankGroups& groups_;
  DataRanks data_ranks_;
  std::vector<double> compute_;
  std::vector<double> layouts_;
};

}  // namespace trireme::predict

// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/uneven_stages.h>

#include <trireme/cluster/units.h>
#include <trireme/graph/module_path.h>
#include <trireme/plan/plan_schedule.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/stage_work.h>
#include <trireme/predict/step_costs.h>

#include <algorithm>
#include <limits>
#include <map>

namespace trireme::search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The part of the model that a parameter belongs to: a repeated module, or else its own module.
std::string unit_of(const std::string& parameter, const std::vector<RepeatedModules>& repeated) {
  for (const RepeatedModules& group : repeated) {
    for (const std::string& path : group.paths) {
      if (parameter.starts_with(path + ".")) return path;
    }
  }
  return graph::detail::module_of(parameter);
}

// Sums of the first elements.
std::vector<double> sums_of(const std::vector<double>& values) {
  std::vector<double> sums = {0};
  for (const double value : values) sums.push_back(sums.back() + value);
  return sums;
}

// Micro-batches that a rank along `pipe` keeps at the same time, about.
double in_flight(const Plan& plan, int rank) {
  const auto all = static_cast<double>(plan.micro_batches);
  if (plan.schedule == "gpipe") return all;
  const int before = plan.schedule == "1f1b" ? rank : 0;
  return std::min(all, static_cast<double>(stage_ranks(plan) - before));
}

}  // namespace

std::vector<StageDevices> devices_of_stages(const Plan& plan, const cluster::Cluster& cluster) {
  const RankGroups groups(plan, cluster);
  const std::int64_t stages = groups.size(kStageAxis);
  const std::int64_t step = groups.stride(kStageAxis);
  std::vector<StageDevices> all(static_cast<std::size_t>(stages),
                                {.slowest = "", .memory_bytes = kNever});
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    all[static_cast<std::size_t>(stage)].slowest = groups.slowest_device(stage).name;
  }
  std::int64_t rank = 0;
  for (const cluster::Hosts& hosts : cluster.hosts) {
    const double bytes = cluster.device(hosts.device).memory_gib * cluster::kGiB;
    for (std::int64_t i = 0; i < hosts.count * hosts.devices; ++i, ++rank) {
      double& memory = all[static_cast<std::size_t>(rank / step % stages)].memory_bytes;
      memory = std::min(memory, bytes);
    }
  }
  return all;
}

std::vector<std::size_t> divide_by_costs(const StageCosts& costs) {
  const std::size_t num_stages = costs.seconds.size();
  const std::size_t num_parts = costs.seconds.front().size();
  // best[end]: the slowest of the stages so far, if they have all parts before `end`.
  std::vector<double> best(num_parts + 1, kNever);
  best[0] = 0;
  std::vector<std::vector<std::size_t>> begins;
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    const std::vector<double> seconds = sums_of(costs.seconds[stage]);
    const std::vector<double> bytes = sums_of(costs.bytes[stage]);
    std::vector<double> next(num_parts + 1, kNever);
    std::vector<std::size_t>& begin_of = begins.emplace_back(num_parts + 1, 0);
    for (std::size_t end = 1; end <= num_parts; ++end) {
      for (std::size_t begin = 0; begin < end; ++begin) {
        if (bytes[end] - bytes[begin] > costs.limits[stage]) continue;
        const double slowest = std::max(best[begin], seconds[end] - seconds[begin]);
        if (slowest >= next[end]) continue;
        next[end] = slowest;
        begin_of[end] = begin;
      }
    }
    best = std::move(next);
  }
  if (best.back() == kNever) return {};
  std::vector<std::size_t> boundaries = {num_parts};
  for (auto row = begins.rbegin(); row != begins.rend(); ++row) {
    boundaries.push_back((*row)[boundaries.back()]);
  }
  std::ranges::reverse(boundaries);
  return boundaries;
}

UnevenStages::UnevenStages(const ModuleRecord& record, const Plan& plan,
                           const cluster::Cluster& cluster, const predict::TrainingOptions& options,
                           const std::vector<RepeatedModules>& repeated, std::vector<double> limits)
    : record_(record),
      plan_(plan),
      cluster_(cluster),
      options_(options),
      limits_(std::move(limits)) {
  std::map<std::string, int> first_calls;
  for (int call = 0; call < record.num_forward; ++call) {
    for (const int parameter : record.call(call).parameters) {
      const std::string& name = record.parameters[static_cast<std::size_t>(parameter)].name;
      const std::string unit = unit_of(name, repeated);
      if (!unit.empty()) first_calls.try_emplace(unit, call);
    }
  }
  for (const auto& [module, call] : first_calls) {
    // A module that contains others may end after they begin: no stage can begin with it.
    const bool contains_another = std::ranges::any_of(
        first_calls, [&](const auto& other) { return other.first.starts_with(module + '.'); });
    if (!contains_another) places_.push_back({module, call});
  }
  std::ranges::stable_sort(places_, {}, &Place::call);
  const auto equal = std::ranges::unique(places_, {}, &Place::call);
  places_.erase(equal.begin(), equal.end());
  if (!places_.empty()) places_.front().call = 0;
  const schedule::Schedule schedule = plan_schedule(plan, static_cast<int>(plan.micro_batches));
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    rank_of_stage_.push_back(schedule.rank_of(stage));
  }
}

std::size_t UnevenStages::part_of(int call) const {
  const auto after = std::ranges::upper_bound(places_, call, {}, &Place::call);
  return static_cast<std::size_t>(after - places_.begin()) - 1;
}

// Adds the time of each part on a device, with what backward repeats.
void UnevenStages::add_seconds(std::vector<double>& seconds,
                               const cluster::DeviceKind& device) const {
  const RankGroups groups(plan_, cluster_);
  predict::StepCosts costs(record_, plan_, cluster_, options_, groups);
  for (int call = 0; call < record_.num_calls(); ++call) {
    costs.set_device(call, device);
    seconds[part_of(record_.call(call).forward_call)] += costs.seconds(call);
  }
  for (const predict::RecomputedRegion& region : predict::recomputed_regions(record_, plan_)) {
    for (int call = region.first; call <= region.last; ++call) {
      seconds[part_of(call)] += costs.seconds(call);
    }
  }
}

// Bytes of parameters, gradients and optimizer state of each part.
std::vector<double> UnevenStages::state_bytes() const {
  std::vector<double> bytes(places_.size(), 0);
  const RankGroups groups(plan_, cluster_);
  const predict::StepCosts costs(record_, plan_, cluster_, options_, groups);
  std::vector<bool> is_counted(record_.parameters.size(), false);
  for (int call = 0; call < record_.num_forward; ++call) {
    for (const int number : record_.call(call).parameters) {
      const auto index = static_cast<std::size_t>(number);
      if (is_counted[index]) continue;
      is_counted[index] = true;
      const ParameterRecord& parameter = record_.parameters[index];
      const auto share = [&](int from_level) {
        return zero_level_of(plan_, parameter.name) >= from_level
                   ? 1 / static_cast<double>(costs.shard_ranks())
                   : 1;
      };
      double& sum = bytes[part_of(call)];
      sum += parameter.bytes * share(3);
      if (!parameter.requires_grad) continue;
      sum += parameter.elements * predict::gradient_bytes(parameter, options_) * share(2);
      if (plan_.offload_optimizer) continue;
      sum += parameter.elements * predict::optimizer_bytes(parameter, options_) * share(1);
    }
  }
  return bytes;
}

// Bytes that each part keeps of a micro-batch for backward, about: what backward reads and does not
// compute again.
std::vector<double> UnevenStages::kept_bytes() const {
  std::vector<bool> is_read(static_cast<std::size_t>(record_.num_forward), false);
  for (int call = record_.num_forward; call < record_.num_calls(); ++call) {
    for (const int read : record_.call(call).reads) {
      if (read < record_.num_forward) is_read[static_cast<std::size_t>(read)] = true;
    }
  }
  for (const predict::RecomputedRegion& region : predict::recomputed_regions(record_, plan_)) {
    for (int call = region.first; call < region.last; ++call) {
      is_read[static_cast<std::size_t>(call)] = false;
    }
  }
  std::vector<double> bytes(places_.size(), 0);
  for (int call = 0; call < record_.num_forward; ++call) {
    if (is_read[static_cast<std::size_t>(call)] && !record_.call(call).is_rematerialized) {
      bytes[part_of(call)] += record_.call(call).result_bytes;
    }
  }
  return bytes;
}

StageCosts UnevenStages::costs() const {
  const std::vector<StageDevices> devices = devices_of_stages(plan_, cluster_);
  const std::vector<double> states = state_bytes();
  const std::vector<double> kept = kept_bytes();
  std::map<std::string, std::vector<double>> seconds;  // by kind of device
  StageCosts costs;
  const double stages_of_rank =
      static_cast<double>(rank_of_stage_.size()) / static_cast<double>(devices.size());
  for (const int rank : rank_of_stage_) {
    const StageDevices& device = devices[static_cast<std::size_t>(rank)];
    const auto [found, is_new] =
        seconds.try_emplace(device.slowest, std::vector<double>(places_.size(), 0));
    if (is_new) add_seconds(found->second, cluster_.device(device.slowest));
    costs.seconds.push_back(found->second);
    std::vector<double>& bytes = costs.bytes.emplace_back(states);
    const double times = in_flight(plan_, rank);
    for (std::size_t part = 0; part < bytes.size(); ++part) bytes[part] += times * kept[part];
    costs.limits.push_back(limits_[static_cast<std::size_t>(rank)] / stages_of_rank);
  }
  return costs;
}

Stages UnevenStages::stages_at(const std::vector<std::size_t>& boundaries) const {
  Stages stages;
  for (std::size_t stage = 1; stage + 1 < boundaries.size(); ++stage) {
    stages.emplace_back(places_[boundaries[stage]].module, static_cast<int>(stage));
  }
  return stages;
}

Stages UnevenStages::by_devices() const {
  if (places_.size() < rank_of_stage_.size()) return {};
  StageCosts all = costs();
  std::vector<std::size_t> boundaries = divide_by_costs(all);
  if (boundaries.empty()) {
    // Memory is estimated: the prediction decides.
    std::ranges::fill(all.limits, kNever);
    boundaries = divide_by_costs(all);
  }
  return stages_at(boundaries);
}

std::vector<Stages> UnevenStages::neighbours(const Stages& stages) const {
  std::vector<std::size_t> boundaries = {0};
  for (const auto& [module, stage] : stages) {
    const auto found = std::ranges::find(places_, module, &Place::module);
    boundaries.push_back(static_cast<std::size_t>(found - places_.begin()));
  }
  boundaries.push_back(places_.size());
  std::vector<Stages> all;
  for (std::size_t i = 1; i + 1 < boundaries.size(); ++i) {
    const std::size_t before = boundaries[i];
    for (const std::size_t place : {before - 1, before + 1}) {
      if (place <= boundaries[i - 1] || place >= boundaries[i + 1]) continue;
      boundaries[i] = place;
      all.push_back(stages_at(boundaries));
    }
    boundaries[i] = before;
  }
  return all;
}

}  // namespace trireme::search

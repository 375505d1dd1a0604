// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/bounds.h>

#include <trireme/cluster/operator_time.h>
#include <trireme/cluster/units.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/memory_walk.h>
#include <trireme/predict/predict.h>
#include <trireme/predict/stage_work.h>
#include <trireme/predict/step_costs.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace trireme::search {
namespace {

using cluster::kGiga;

std::vector<const cluster::DeviceKind*> kinds_in_use(const cluster::Cluster& cluster) {
  std::vector<const cluster::DeviceKind*> kinds;
  for (const cluster::Hosts& hosts : cluster.hosts) {
    const cluster::DeviceKind& kind = cluster.device(hosts.device);
    if (std::ranges::find(kinds, &kind) == kinds.end()) kinds.push_back(&kind);
  }
  return kinds;
}

// How many ranks share what ZeRO shards from a level on, at most: single modules may have another.
double share(const Choice& choice, const Plan& base, int from_level) {
  const bool is_sharded = choice.zero_level >= from_level || !base.zero_level_of.empty();
  return is_sharded ? static_cast<double>(choice.data) : 1;
}

// What a pipeline of stages takes at least in which backward is not divided and each rank has one
// stage. Stage s waits until the stages before it have worked forward on the first micro-batch, and
// they work backward on the last one after it: step >= P(s) + m T(s), where P(s) is the sum of T of
// the stages before. The largest of these is smallest if all are equal, which makes the remainder
// V - P(s) shrink by the factor 1 - 1/m from stage to stage, and P(p) is the whole work T.
double pipeline_bound(double work, double micro_batches, double stages) {
  return work / (1 - std::pow(1 - 1 / micro_batches, stages));
}

// For each call of forward, the last one whose result its backward reads; -1 for none.
std::vector<int> last_read_by_backward(const ModuleRecord& record) {
  std::vector<int> last_read(static_cast<std::size_t>(record.num_forward), -1);
  for (int number = record.num_forward; number < record.num_calls(); ++number) {
    const OperatorCall& call = record.call(number);
    int& last = last_read[static_cast<std::size_t>(call.forward_call)];
    for (const int read : call.reads) {
      if (read < record.num_forward) last = std::max(last, read);
    }
  }
  return last_read;
}

// The most that stages which begin within a region save of its recomputation, for each of them: the
// stage before repeats only what its own backward reads. Several cuts save no more each, because
// results are read by the backward of calls after them.
double most_saved_by_cut(const std::vector<int>& last_read, const predict::RecomputedRegion& region,
                         const std::function<double(int)>& seconds) {
  double most = 0;
  double saved = 0;
  int reached = region.first - 1;
  for (int call = region.first; call <= region.last_repeated; ++call) {
    saved += seconds(call);
    const int last = last_read[static_cast<std::size_t>(call)];
    for (; reached < last; ++reached) saved -= seconds(reached + 1);
    most = std::max(most, saved);
  }
  return most;
}

// The share of a whole pass for which ranks wait in a schedule, times the number of stages.
double bubble(const Choice& choice) {
  const double others = static_cast<double>(choice.pipe) - 1;
  if (choice.schedule == "interleaved") return others / static_cast<double>(choice.chunks);
  if (choice.schedule == "zb-h1") return others / 3;
  if (choice.schedule == "zb-h2" || choice.schedule == "zb-v") return others / 10;
  return others;
}

// Micro-batches that the first rank keeps at the same time.
double in_flight(const Choice& choice) {
  const auto all = static_cast<double>(choice.micro_batches);
  const auto pipe = static_cast<double>(choice.pipe);
  if (choice.schedule == "gpipe") return all;
  if (choice.schedule == "zb-h2") return std::min(all, 2 * pipe - 1);
  if (choice.schedule == "interleaved") {
    return std::min(all, pipe + (pipe - 1) / static_cast<double>(choice.chunks));
  }
  return std::min(all, pipe);
}

}  // namespace

const BoundTable::Totals& BoundTable::totals(const SharedAxes& shared, std::int64_t rows) {
  const auto found = totals_.find({shared, rows});
  if (found != totals_.end()) return found->second;
  const ModuleRecord& record = records_.record(shared, rows);
  Totals& totals = totals_[{shared, rows}];
  // Along `pipe`, so that nothing is exchanged along `data`.
  Plan plan = training_.base;
  plan.mesh = {{kStageAxis, ranks_ / shared.size()}};
  add_axes(plan.mesh, shared);
  plan.micro_batches = 1;
  const RankGroups groups(plan, cluster_);
  predict::StepCosts costs(record, plan, cluster_, training_.options, groups);
  std::vector<double> least(record.calls.size());
  const auto kinds = kinds_in_use(cluster_);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (int call = 0; call < record.num_calls(); ++call) {
      if (kinds.size() > 1) costs.set_device(call, *kinds[i]);
      double& seconds = least[static_cast<std::size_t>(call)];
      seconds = i == 0 ? costs.compute(call) : std::min(seconds, costs.compute(call));
    }
  }
  for (int call = 0; call < record.num_calls(); ++call) {
    totals.compute += least[static_cast<std::size_t>(call)];
    totals.layouts += costs.layouts(call);
  }
  const predict::StageWork whole = predict::divide(record, plan, 1).front();
  const predict::ActivationMemory memory =
      predict::walk_memory(record, whole, predict::GradientMemory::kReserved);
  totals.kept = memory.kept;
  totals.temporary =
      std::max(0.0, std::max(memory.forward_peak, memory.backward_peak) - memory.kept);
  plan.recompute = spread_over(repeated_, count_of(repeated_));
  if (plan.recompute.empty()) {
    totals.kept_inputs = totals.kept;
  } else {
    const predict::StageWork work = predict::divide(record, plan, 1).front();
    totals.kept_inputs =
        predict::walk_memory(record, work, predict::GradientMemory::kReserved).kept;
    const auto seconds = [&](int call) {
      return least[static_cast<std::size_t>(call)] + costs.layouts(call);
    };
    const std::vector<int> last_read = last_read_by_backward(record);
    for (const predict::RecomputedRegion& region : work.regions) {
      for (int call = region.first; call <= region.last_repeated; ++call) {
        totals.recomputation += seconds(call);
      }
      totals.saved_by_cut =
          std::max(totals.saved_by_cut, most_saved_by_cut(last_read, region, seconds));
    }
  }
  totals.inputs = record.input_bytes;
  double bandwidth = 0;
  for (const cluster::DeviceKind* const kind : kinds) {
    bandwidth = std::max(bandwidth, kind->memory_gb_per_s * kGiga * kind->efficiency.memory);
  }
  for (const ParameterRecord& parameter : record.parameters) {
    totals.parameters += parameter.bytes;
    if (!parameter.requires_grad) continue;
    totals.trained += parameter.bytes;
    const double gradient =
        parameter.elements * predict::gradient_bytes(parameter, training_.options);
    const double state =
        parameter.elements * predict::optimizer_bytes(parameter, training_.options);
    totals.gradients += gradient;
    totals.optimizer += state;
    totals.optimizer_seconds += (2 * state + gradient + 2 * parameter.bytes) / bandwidth;
  }
  return totals;
}

BoundTable::Exchanges BoundTable::exchanges(const Choice& choice, const Totals& totals) {
  if (choice.data == 1) return {};
  const auto [found, is_new] = exchanges_.try_emplace(
      {choice.pipe, choice.data, choice.shared, choice.data_outside, choice.zero_level == 0});
  if (!is_new) return found->second;
  Plan plan;
  plan.mesh = make_plan(choice, {}, {}, {}).mesh;
  const RankGroups groups(plan, cluster_);
  const double bytes = totals.trained / static_cast<double>(choice.pipe);
  found->second = {
      .reduce = groups.seconds(
          kDataAxis, choice.zero_level == 0 ? Collective::kAllReduce : Collective::kReduceScatter,
          bytes),
      .gather =
          choice.zero_level == 0 ? 0 : groups.seconds(kDataAxis, Collective::kAllGather, bytes)};
  return found->second;
}

double BoundTable::least_seconds(const Choice& choice, const Totals& totals,
                                 const Exchanges& all) const {
  const auto micro_batches = static_cast<double>(choice.micro_batches);
  const auto pipe = static_cast<double>(choice.pipe);
  const bool recomputes_all = choice.recomputed > 0 && choice.recomputed == count_of(repeated_);
  const double stages_of_rank =
      choice.schedule == "zb-v" ? 2 : static_cast<double>(std::max<std::int64_t>(choice.chunks, 1));
  const double cuts = pipe * stages_of_rank - 1;
  const double repeated = std::max(0.0, totals.recomputation - cuts * totals.saved_by_cut);
  const double work = totals.compute + totals.layouts + (recomputes_all ? repeated : 0);
  // Measured times of an optimizer are not proportional to bytes, and in host memory it steps at
  // the rate of the host.
  const bool is_by_bytes = cluster_.optimizers.empty() && !training_.base.offload_optimizer;
  const double optimizer =
      is_by_bytes ? totals.optimizer_seconds / share(choice, training_.base, 1) : 0;
  double least = (micro_batches * work + optimizer) / pipe;
  if (choice.schedule == "1f1b" || choice.schedule == "gpipe") {
    least = std::max(least, pipeline_bound(work, micro_batches, pipe));
  }
  // Without a pipeline, all exchanges of a step are within it, one after the other. These settings
  // and measured curves may make them shorter than the exchange of all bytes at once.
  const Plan& base = training_.base;
  const bool is_plain = base.wire == GradientCompression::kNone && base.shard_ranks == 0 &&
                        base.zero_level_of.empty() && cluster_.collectives.empty();
  if (choice.pipe == 1 && choice.zero_level <= 2 && is_plain)
    least = std::max(least, all.reduce + all.gather);
  return least;
}

double BoundTable::about(const Choice& choice, const Totals& totals, const Exchanges& all) const {
  const auto micro_batches = static_cast<double>(choice.micro_batches);
  const auto pipe = static_cast<double>(choice.pipe);
  const double part = repeated_.empty() ? 0
                                        : static_cast<double>(choice.recomputed) /
                                              static_cast<double>(count_of(repeated_));
  const double pass = (totals.compute + totals.layouts + part * totals.recomputation) / pipe;
  double seconds = (micro_batches + bubble(choice)) * pass +
                   totals.optimizer_seconds / pipe / share(choice, training_.base, 1);
  // Exchanges run beside the passes, but for what is left at the ends.
  constexpr double kHidden = 0.6;
  constexpr double kAlwaysSeen = 0.05;
  const auto seen = [&](double exchange, double beside) {
    return std::max(kAlwaysSeen * exchange, exchange - kHidden * beside);
  };
  if (choice.zero_level <= 2) {
    seconds += seen(all.reduce, pass * 2 / 3) + seen(all.gather, pass / 3);
  } else {
    seconds += micro_batches * seen(2 * all.gather, pass) + seen(all.reduce, pass * 2 / 3);
  }
  return seconds;
}

Bounds BoundTable::of(const Choice& choice) {
  const Totals& sums = totals(choice.shared, choice.rows);
  const Exchanges all = exchanges(choice, sums);
  const auto pipe = static_cast<double>(choice.pipe);
  const bool reserves = choice.data > 1 || choice.micro_batches > 1;
  const double states =
      ((sums.parameters - sums.trained) + sums.trained / share(choice, training_.base, 3) +
       (training_.base.offload_optimizer ? 0 : sums.optimizer / share(choice, training_.base, 1)) +
       (reserves ? sums.gradients / share(choice, training_.base, 2) : 0)) /
      pipe;
  const double kept = choice.recomputed == 0 ? sums.kept : sums.kept_inputs;
  return {.least_seconds = least_seconds(choice, sums, all),
          .least_memory = states + sums.inputs,
          .seconds = about(choice, sums, all),
          .memory = states + sums.inputs + sums.temporary + in_flight(choice) * kept / pipe};
}

}  // namespace trireme::search

// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/predict.h>

#include <trireme/base/error.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/cluster/units.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_schedule.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/buckets.h>
#include <trireme/predict/limited_activations.h>
#include <trireme/predict/memory_walk.h>
#include <trireme/predict/predictable_plan.h>
#include <trireme/predict/rank_activations.h>
#include <trireme/predict/simulated_step.h>
#include <trireme/predict/stage_pass.h>
#include <trireme/predict/stage_work.h>
#include <trireme/predict/step_costs.h>
#include <trireme/predict/step_simulation.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/timeline.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string_view>

namespace trireme::predict {
namespace {

using cluster::kGiB;
using cluster::kGiga;
using cluster::kMicro;
using cluster::kMilli;

std::string_view name_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kSgd:
      return "sgd";
    case Optimizer::kMomentum:
      return "momentum";
    case Optimizer::kAdam:
      break;
  }
  return "adam";
}

class StepModel {
 public:
  StepModel(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
            const TrainingOptions& options)
      : record_(record),
        plan_(plan),
        cluster_(cluster),
        options_(options),
        groups_(plan, cluster),
        costs_(record, plan, cluster, options, groups_),
        pipe_(groups_.size(kStageAxis)),
        micro_batches_(static_cast<int>(plan.micro_batches)) {}

  Prediction run() {
    schedule_ = schedule_with_stages();
    make_stages();
    Prediction prediction = {.cluster = cluster_.name, .ranks = groups_.num_ranks()};
    if (!schedule_) {
      time_of_one_stage(prediction);
    } else {
      time_of_pipeline(prediction);
    }
    add_flops(prediction);
    add_memory(prediction);
    add_checkpoint(prediction);
    return prediction;
  }

  // The same step with its spans and its memory over time.
  SimulatedStep simulate() {
    SimulatedStep step = {.prediction = run()};
    std::vector<double> optimizer;
    for (int rank = 0; rank < pipe_; ++rank) optimizer.push_back(optimizer_seconds(rank));
    const StepSimulation simulation({.costs = costs_,
                                     .stages = stages_,
                                     .micro_batches = micro_batches_,
                                     .reduces_each = reduces_each(),
                                     .optimizer_seconds = optimizer,
                                     .rank_stride = groups_.stride(kStageAxis)});
    if (!schedule_) {
      step.ranks = {simulation.one_stage()};
      return step;
    }
    std::vector<double> tails;
    std::vector<double> heads;
    for (const StageModel& stage : stages_) {
      tails.push_back(exchange_tail(stage));
      heads.push_back(gather_head(stage));
    }
    step.ranks = simulation.pipeline(*schedule_, stage_times(), tails, heads);
    return step;
  }

 private:
  // The schedule of a TrainingStep of several stages, or with copies to host memory.
  std::optional<schedule::Schedule> schedule_with_stages() const {
    if (!needs_training_step(plan_)) return {};
    schedule::Schedule schedule = plan_schedule(plan_, micro_batches_);
    if (schedule.num_stages() == 1 && !plan_.offload_activations) return {};
    return schedule;
  }

  int num_stages() const { return schedule_ ? schedule_->num_stages() : 1; }
  int rank_of(std::size_t stage) const {
    return schedule_ ? schedule_->rank_of(static_cast<int>(stage)) : 0;
  }

  void make_stages() {
    std::vector<StageWork> stages = divide(record_, plan_, num_stages());
    if (plan_.activation_bytes > 0) {
      limit_activations(record_, schedule_ ? *schedule_ : plan_schedule(plan_, micro_batches_),
                        plan_.activation_bytes, stages);
    }
    for (StageWork& work : stages) {
      stages_.push_back({.work = std::move(work)});
    }
    if (schedule_) add_skipping_edges();
    for (std::size_t i = 0; i < stages_.size(); ++i) make_stage(i);
  }

  // What stages send beyond the next one goes there directly, and later stages wait for it.
  void add_skipping_edges() {
    if (schedule::lists_messages(*schedule_)) return;
    for (std::size_t from = 0; from < stages_.size(); ++from) {
      for (const auto& [to, bytes] : stages_[from].work.sent) {
        const schedule::Edge edge = {.from = static_cast<int>(from), .to = to};
        const bool is_known = std::ranges::find(schedule_->edges, edge) != schedule_->edges.end();
        if (!is_known) schedule_->edges.push_back(edge);
      }
    }
  }

  void make_stage(std::size_t number) {
    StageModel& stage = stages_[number];
    const cluster::DeviceKind& device = groups_.slowest_device(rank_of(number));
    stage.buckets = make_buckets(record_, stage.work, plan_);
    check_shares(stage.buckets, record_, data_ranks_of(plan_));
    stage.bucket_of.assign(record_.parameters.size(), -1);
    for (std::size_t i = 0; i < stage.buckets.size(); ++i) {
      for (const int parameter : stage.buckets[i].parameters) {
        stage.bucket_of[static_cast<std::size_t>(parameter)] = static_cast<int>(i);
      }
    }
    stage.memory =
        walk_memory(record_, stage.work,
                    reserves_gradients() ? GradientMemory::kReserved : GradientMemory::kMade,
                    after_backward(stage.work));
    for (const auto* calls : {&stage.work.forward, &stage.work.backward}) {
      for (const int call : *calls) {
        costs_.set_device(call, device);
        stage.compute += costs_.compute(call);
        stage.layouts += costs_.layouts(call);
        stage.flops += record_.call(call).work.flops;
        stage.weight += costs_.compute(call) * record_.call(call).weight_share;
      }
    }
    for (RecomputedRegion& region : stage.work.regions) {
      if (options_.repeats_whole_regions) region.last_repeated = region.last;
      for (int call = region.first; call <= region.last_repeated; ++call) {
        stage.recomputation += costs_.compute(call);
        stage.layouts += costs_.layouts(call);
        stage.repeated_flops += record_.call(call).work.flops;
      }
    }
  }

  // What gradients need on their way to the layouts of their parameters, or the optimizer: that of
  // LibTorch's Adam makes two tensors for each parameter.
  double after_backward(const StageWork& work) const {
    double most = 0;
    for (const GradientTransfer& item : record_.gradient_transfers) {
      if (std::ranges::find(work.parameters, item.parameter) == work.parameters.end()) continue;
      most = std::max(most, item.copy_bytes);
    }
    if (options_.optimizer != Optimizer::kAdam || options_.optimizer_kernels == 0) return most;
    for (const int number : work.parameters) {
      const ParameterRecord& parameter = record_.parameters[static_cast<std::size_t>(number)];
      if (parameter.requires_grad) most = std::max(most, 2 * parameter.bytes * share(parameter, 1));
    }
    return most;
  }
  // Gradients that are exchanged or added up have memory for the whole step.
  bool reserves_gradients() const { return costs_.data_ranks() > 1 || micro_batches_ > 1; }
  bool reduces_in(int micro_batch) const {
    return micro_batch == micro_batches_ - 1 || reduces_each();
  }
  bool reduces_each() const { return options_.reduces_each_micro_batch && plan_.zero_level >= 2; }

  // Time of a step of `count` micro-batches with the first and the last one among them.
  double simulate_step(const StageModel& stage, int count, double optimizer) const {
    StagePass pass(costs_, stage);
    for (int i = 0; i < count; ++i) {
      const bool is_last = i == count - 1;
      pass.add({.gathers_at_start = i == 0, .reduces = is_last || reduces_in(0)});
    }
    pass.add_gradient_layouts();
    pass.add_last(optimizer);
    return pass.seconds();
  }

  void time_of_one_stage(Prediction& prediction) {
    const StageModel& stage = stages_.front();
    const double optimizer = optimizer_seconds(0);
    // Micro-batches in the middle are alike.
    constexpr int kSimulated = 3;
    double seconds = simulate_step(stage, std::min(micro_batches_, kSimulated), optimizer);
    if (micro_batches_ > kSimulated) {
      const double longer = simulate_step(stage, kSimulated + 1, optimizer);
      seconds += (longer - seconds) * static_cast<double>(micro_batches_ - kSimulated);
    }
    const auto count = static_cast<double>(micro_batches_);
    prediction.step_seconds = seconds;
    prediction.parts = {
        .compute = count * stage.compute,
        .recomputation = count * stage.recomputation,
        .layouts = count * stage.layouts + costs_.gradient_layouts(stage.work.parameters),
        .optimizer = optimizer};
    prediction.parts.data_exchange = seconds - prediction.parts.compute -
                                     prediction.parts.recomputation - prediction.parts.layouts -
                                     optimizer;
    prediction.stage_seconds = {stage.compute + stage.recomputation + stage.layouts};
  }

  // The time to copy what a micro-batch keeps to host memory, or back.
  double copy_seconds(const StageModel& stage, std::size_t number) const {
    if (!plan_.offload_activations) return 0;
    return stage.memory.kept / host_rates(groups_.slowest_device(rank_of(number))).copies;
  }

  schedule::Times stage_times() const {
    schedule::Times times;
    times.stages.clear();
    times.communication.clear();
    for (const StageModel& stage : stages_) {
      StagePass forward(costs_, stage);
      forward.add({.has_backward = false});
      StagePass backward(costs_, stage);
      backward.add({.has_forward = false, .reduces = reduces_each()});
      const double whole = backward.seconds();
      const double weight = std::min(stage.weight, whole);
      times.stages.push_back({.forward = forward.seconds() / kMilli,
                              .backward_input = (whole - weight) / kMilli,
                              .backward_weight = weight / kMilli,
                              .backward = whole / kMilli,
                              .copy = copy_seconds(stage, times.stages.size()) / kMilli});
    }
    for (const schedule::Edge& edge : schedule_->edges) {
      const double bytes = sent_bytes(schedule::item(stages_, edge.from).work, edge.to);
      times.communication.push_back(schedule_->crosses_ranks(edge)
                                        ? groups_.message_seconds(bytes,
                                                                  schedule_->rank_of(edge.from),
                                                                  schedule_->rank_of(edge.to)) /
                                              kMilli
                                        : 0);
    }
    return times;
  }

  // The exchange along data that goes on after the last backward of a stage.
  // Before it, gradients come to the layouts of their parameters.
  double exchange_tail(const StageModel& stage) const {
    const double layouts = costs_.gradient_layouts(stage.work.parameters);
    if (costs_.data_ranks() == 1) return layouts;
    StagePass without(costs_, stage);
    without.add({.has_forward = false});
    StagePass with(costs_, stage);
    with.add({.has_forward = false, .reduces = true});
    return layouts + with.seconds() - without.seconds();
  }

  // The gathers of ZeRO levels 1 and 2 that forward waits for after a step.
  double gather_head(const StageModel& stage) const {
    StagePass without(costs_, stage);
    without.add({.has_backward = false});
    StagePass with(costs_, stage);
    with.add({.has_backward = false, .gathers_at_start = true});
    return with.seconds() - without.seconds();
  }

  void time_of_pipeline(Prediction& prediction) {
    const schedule::Times times = stage_times();
    // A generated schedule is valid.
    const bool is_generated =
        std::ranges::find(schedule::kKinds, plan_.schedule) != schedule::kKinds.end() &&
        !plan_.offload_activations;
    const schedule::Timeline timeline = is_generated
                                            ? schedule::simulate_verified(*schedule_, times)
                                            : schedule::simulate(*schedule_, times);
    double slowest = -1;
    for (int rank = 0; rank < schedule_->num_ranks(); ++rank) {
      double extra = 0;
      StepParts parts;
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (rank_of(i) != rank) continue;
        const StageModel& stage = stages_[i];
        const auto count = static_cast<double>(micro_batches_);
        extra += exchange_tail(stage) + gather_head(stage);
        parts.compute += count * stage.compute;
        parts.recomputation += count * stage.recomputation;
        parts.layouts += count * stage.layouts;
      }
      const auto& spans = schedule::item(timeline.ranks, rank);
      const double end = spans.empty() ? 0 : spans.back().end * kMilli;
      parts.data_exchange = extra;
      parts.optimizer = optimizer_seconds(rank);
      const double all = end + extra + parts.optimizer;
      if (all <= slowest) continue;
      slowest = all;
      parts.pipeline = end - parts.compute - parts.recomputation - parts.layouts;
      prediction.parts = parts;
    }
    prediction.step_seconds = slowest;
    for (const schedule::StageTimes& stage : times.stages) {
      prediction.stage_seconds.push_back((stage.forward + *stage.backward) * kMilli);
    }
  }

  double share(const ParameterRecord& parameter, int from_level) const {
    return zero_level_of(plan_, parameter.name) >= from_level
               ? 1 / static_cast<double>(costs_.shard_ranks())
               : 1;
  }

  std::set<int> parameters_of(int rank) const {
    std::set<int> all;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (rank_of(i) != rank) continue;
      all.insert(stages_[i].work.parameters.begin(), stages_[i].work.parameters.end());
    }
    return all;
  }

  // Rates of a device and its host in bytes per second.
  struct HostRates {
    double copies = 0;  // between the device and host memory
    double memory = 0;  // of host memory, for one of the devices that share it
  };

  HostRates host_rates(const cluster::DeviceKind& device) const {
    double memory = std::numeric_limits<double>::infinity();
    for (const cluster::Hosts& hosts : cluster_.hosts) {
      if (hosts.device != device.name) continue;
      memory = std::min(memory, hosts.memory_gb_per_s / static_cast<double>(hosts.devices));
    }
    if (device.host_gb_per_s == 0 || (plan_.offload_optimizer && memory == 0)) {
      throw UsageError(
          join_message(
              "the plan offloads to host memory, and cluster ", cluster_.name, " does not say ",
              device.host_gb_per_s == 0 ? "host_gb_per_s of device " + device.name
                                        : "memory_gb_per_s of the hosts of " + device.name),
          "add the figure to the description of the cluster (docs/formats/cluster.md); devices "
          "whose memory is that of the host have nothing to offload");
    }
    return {.copies = device.host_gb_per_s * kGiga, .memory = memory * kGiga};
  }

  // The step of an optimizer in host memory: gradients are copied there, the host steps, and
  // parameters are copied back, one after the other.
  double host_optimizer_seconds(int rank, double bytes) const {
    const cluster::DeviceKind& device = groups_.slowest_device(rank);
    const HostRates rates = host_rates(device);
    double copied = 0;
    for (const int number : parameters_of(rank)) {
      const ParameterRecord& parameter = record_.parameters[static_cast<std::size_t>(number)];
      if (!parameter.requires_grad) continue;
      copied += (parameter.bytes + parameter.elements * gradient_bytes(parameter, options_)) *
                share(parameter, 1);
    }
    return copied / rates.copies + bytes / (rates.memory * device.efficiency.memory);
  }

  double optimizer_seconds(int rank) const {
    const cluster::DeviceKind& device = groups_.slowest_device(rank);
    double bytes = 0;
    double kernels = 0;
    std::vector<double> tensors;
    for (const int number : parameters_of(rank)) {
      const ParameterRecord& parameter = record_.parameters[static_cast<std::size_t>(number)];
      if (!parameter.requires_grad) continue;
      tensors.push_back(parameter.bytes * share(parameter, 1));
      // State is read and written, the gradient read, the parameter read and written.
      const double element = 2 * optimizer_bytes(parameter, options_) +
                             gradient_bytes(parameter, options_) +
                             2 * parameter.bytes / std::max(1.0, parameter.elements);
      bytes += parameter.elements * share(parameter, 1) * element;
      kernels += options_.optimizer_kernels;
    }
    const auto measured =
        cluster::optimizer_seconds(cluster_, device.name, name_of(options_.optimizer), tensors);
    if (measured && !plan_.offload_optimizer) return *measured;
    if (plan_.offload_optimizer) return host_optimizer_seconds(rank, bytes);
    return bytes / (device.memory_gb_per_s * kGiga * device.efficiency.memory) +
           kernels * device.kernel_us * kMicro;
  }

  void add_flops(Prediction& prediction) const {
    std::map<std::string_view, double> by_dtype;
    for (const OperatorCall& call : record_.calls) by_dtype[call.work.dtype] += call.work.flops;
    double flops = 0;
    double repeated = 0;
    for (const StageModel& stage : stages_) {
      flops += stage.flops;
      repeated += stage.repeated_flops;
    }
    const double per_rank = static_cast<double>(micro_batches_) / static_cast<double>(pipe_);
    prediction.flops_per_rank = flops * per_rank;
    prediction.repeated_flops = repeated * per_rank;
    const auto most =
        std::ranges::max_element(by_dtype, {}, [](const auto& item) { return item.second; });
    if (most != by_dtype.end() && prediction.step_seconds > 0) {
      const double peak = cluster::peak_flops(groups_.slowest_device(0), most->first);
      if (peak > 0) {
        prediction.utilization = prediction.flops_per_rank / prediction.step_seconds / peak;
      }
    }
    for (const ParameterRecord& parameter : record_.parameters) {
      if (parameter.requires_grad) prediction.parameters += parameter.global_elements;
    }
  }

  // Accelerators have a memory of their own, to which there is a link.
  double lost_memory(std::size_t number) const {
    const StageModel& stage = stages_[number];
    const bool is_accelerator = groups_.slowest_device(rank_of(number)).host_gb_per_s > 0;
    if (!options_.replays_allocator || !is_accelerator) return 0;
    CachingAllocator allocator;
    walk_memory(record_, stage.work,
                reserves_gradients() ? GradientMemory::kReserved : GradientMemory::kMade,
                after_backward(stage.work), &allocator);
    return allocator.reserved() - allocator.peak_in_use();
  }

  void add_memory(Prediction& prediction) {
    for (int rank = 0; rank < pipe_; ++rank) {
      RankMemoryPrediction memory = state_of(rank);
      std::pair<ActivationMoment, int> largest;
      if (schedule_) {
        largest = largest_moment(schedule::item(schedule_->ranks, rank), stages_);
      } else {
        const ActivationMemory& all = stages_.front().memory;
        const double peak = std::max(all.forward_peak, all.backward_peak);
        largest.first = moment_of(all, peak - all.peak_gradients, 0);
      }
      memory.activations = largest.first.kept;
      if (schedule_) {
        memory.host += largest_on_host(schedule::item(schedule_->ranks, rank), stages_);
      }
      memory.temporary = largest.first.temporary;
      memory.peak_module = schedule::item(stages_, largest.second).memory.peak_module;
      memory.activations_by_module = schedule::item(stages_, largest.second).memory.by_module;
      memory.inputs = record_.input_bytes;
      memory.lost = lost_memory(static_cast<std::size_t>(largest.second));
      if (!reserves_gradients()) memory.gradients = stages_.front().memory.peak_gradients;
      prediction.memory.push_back(std::move(memory));
    }
    double smallest = groups_.slowest_device(0).memory_gib;
    for (int rank = 1; rank < pipe_; ++rank) {
      smallest = std::min(smallest, groups_.slowest_device(rank).memory_gib);
    }
    prediction.device_memory = smallest * kGiB;
  }

  RankMemoryPrediction state_of(int rank) const {
    RankMemoryPrediction memory;
    for (const int number : parameters_of(rank)) {
      const ParameterRecord& parameter = record_.parameters[static_cast<std::size_t>(number)];
      memory.parameters += parameter.bytes * share(parameter, 3);
      if (!parameter.requires_grad) continue;
      memory.gradients +=
          parameter.elements * gradient_bytes(parameter, options_) * share(parameter, 2);
      const double state =
          parameter.elements * optimizer_bytes(parameter, options_) * share(parameter, 1);
      (plan_.offload_optimizer ? memory.host : memory.optimizer) += state;
    }
    if (costs_.data_ranks() == 1) return memory;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (rank_of(i) == rank) memory.buckets += bucket_memory(stages_[i].buckets, plan_);
    }
    return memory;
  }

  void add_checkpoint(Prediction& prediction) const {
    for (const ParameterRecord& parameter : record_.parameters) {
      const double element = parameter.bytes / std::max(1.0, parameter.elements);
      prediction.checkpoint_bytes += parameter.global_elements * element;
      if (!parameter.requires_grad) continue;
      prediction.checkpoint_bytes +=
          parameter.global_elements * optimizer_bytes(parameter, options_);
    }
    double rate = 0;
    for (const cluster::Hosts& hosts : cluster_.hosts) {
      rate += static_cast<double>(hosts.count) * hosts.disk_gb_per_s;
    }
    if (rate > 0) prediction.checkpoint_seconds = prediction.checkpoint_bytes / (rate * kGiga);
  }

  const ModuleRecord& record_;
  const Plan& plan_;
  const cluster::Cluster& cluster_;
  const TrainingOptions& options_;
  RankGroups groups_;
  StepCosts costs_;
  std::int64_t pipe_;
  int micro_batches_;
  std::optional<schedule::Schedule> schedule_;
  std::vector<StageModel> stages_;
};

constexpr double kFloat32Bytes = 4;
constexpr double kHalfBytes = 2;

// Numbers that the optimizer keeps for each element.
double num_states(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kSgd:
      return 0;
    case Optimizer::kMomentum:
      return 1;
    case Optimizer::kAdam:
      break;
  }
  return 2;
}

}  // namespace

Prediction predict(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
                   const TrainingOptions& options) {
  check_predictable(plan);
  const cluster::Cluster used = cluster.with_ranks(ranks_of(plan));
  cluster::check_cluster(used);
  return StepModel(record, plan, used, options).run();
}

SimulatedStep simulate_step(const ModuleRecord& record, const Plan& plan,
                            const cluster::Cluster& cluster, const TrainingOptions& options) {
  check_predictable(plan);
  const cluster::Cluster used = cluster.with_ranks(ranks_of(plan));
  cluster::check_cluster(used);
  return StepModel(record, plan, used, options).simulate();
}

SimulatedStep simulate_step(ModuleRef module, const Plan& plan, const cluster::Cluster& cluster,
                            const std::function<at::Tensor()>& forward,
                            const TrainingOptions& options) {
  check_predictable(plan);
  return simulate_step(record_module(module, plan, forward, &cluster), plan, cluster, options);
}

Prediction predict(ModuleRef module, const Plan& plan, const cluster::Cluster& cluster,
                   const std::function<at::Tensor()>& forward, const TrainingOptions& options) {
  check_predictable(plan);
  return predict(record_module(module, plan, forward, &cluster), plan, cluster, options);
}

double gradient_bytes(const ParameterRecord& parameter, const TrainingOptions& options) {
  return parameter.is_half && !options.has_float32_gradients ? kHalfBytes : kFloat32Bytes;
}

double optimizer_bytes(const ParameterRecord& parameter, const TrainingOptions& options) {
  if (options.optimizer_state_bytes) {
    return *options.optimizer_state_bytes * parameter.bytes / std::max(1.0, parameter.elements);
  }
  if (!parameter.is_half) return num_states(options.optimizer) * kFloat32Bytes;
  if (!options.has_master_weights) return num_states(options.optimizer) * kHalfBytes;
  return (num_states(options.optimizer) + 1) * kFloat32Bytes;
}

}  // namespace trireme::predict

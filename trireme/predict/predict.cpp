// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/predict.h>

#include <trireme/base/error.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/buckets.h>
#include <trireme/predict/element_bytes.h>
#include <trireme/predict/memory_walk.h>
#include <trireme/predict/predictable_plan.h>
#include <trireme/predict/rank_groups.h>
#include <trireme/predict/stage_work.h>
#include <trireme/predict/streams.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/memory.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

namespace trireme::predict {
namespace {

using cluster::kGiB;
using cluster::kGiga;
using cluster::kMicro;
using cluster::kMilli;

// What a pass over a stage includes.
struct PassOptions {
  bool has_forward = true;
  bool has_backward = true;
  bool gathers_at_start = false;  // ZeRO levels 1 and 2, after the optimizer step
  bool reduces = false;
};

struct StageModel {
  StageWork work;
  std::vector<Bucket> buckets;
  std::vector<int> bucket_of;  // by parameter; -1: none
  ActivationMemory memory;
  double compute = 0;        // seconds of one micro-batch, without recomputation and collectives
  double recomputation = 0;  // seconds
  double layouts = 0;        // seconds of collectives along axes of layouts
  double weight = 0;         // seconds of gradients of parameters
  double flops = 0;
  double repeated_flops = 0;
};

class StepModel {
 public:
  StepModel(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
            const TrainingOptions& options)
      : record_(record),
        plan_(plan),
        cluster_(cluster),
        options_(options),
        groups_(plan, cluster),
        data_(groups_.size(kDataAxis)),
        pipe_(groups_.size(kStageAxis)),
        cut_(plan.shard_ranks > 0 ? plan.shard_ranks : data_),
        micro_batches_(static_cast<int>(plan.micro_batches)) {}

  Prediction run() {
    make_schedule();
    make_stages();
    Prediction prediction = {.cluster = cluster_.name, .ranks = groups_.num_ranks()};
    if (pipe_ == 1) {
      time_of_one_stage(prediction);
    } else {
      time_of_pipeline(prediction);
    }
    add_flops(prediction);
    add_memory(prediction);
    add_checkpoint(prediction);
    return prediction;
  }

 private:
  void make_schedule() {
    if (pipe_ == 1) return;
    schedule_ = own_schedule(plan_);
    if (!schedule_) {
      schedule_ = schedule::generate(plan_.schedule, static_cast<int>(pipe_), micro_batches_,
                                     static_cast<int>(plan_.chunks));
    }
  }

  int num_stages() const { return schedule_ ? schedule_->num_stages() : 1; }
  int rank_of(std::size_t stage) const {
    return schedule_ ? schedule_->rank_of(static_cast<int>(stage)) : 0;
  }

  // -- time of calls
  // -------------------------------------------------------------------------------

  double compute_seconds(int call, const cluster::DeviceKind& device) const {
    cluster::OperatorWork work = record_.call(call).work;
    if (work.flops <= 0 && work.bytes <= 0) return 0;
    if (options_.allows_tf32 && work.dtype == "float32" && device.teraflops.tf32 > 0) {
      work.dtype = "tf32";
    }
    return cluster::seconds(device, work,
                            cluster::measured_products(cluster_, device.name, work.dtype));
  }

  double layout_seconds(int call) const {
    double seconds = 0;
    for (const Transfer& transfer : record_.call(call).transfers) {
      seconds += groups_.seconds(transfer.axis, transfer.collective, transfer.bytes);
    }
    return seconds;
  }

  void make_stages() {
    compute_.resize(record_.calls.size());
    layouts_.resize(record_.calls.size());
    std::vector<double> all(record_.calls.size());
    const cluster::DeviceKind& first = groups_.slowest_device(0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      compute_[i] = compute_seconds(static_cast<int>(i), first);
      layouts_[i] = layout_seconds(static_cast<int>(i));
      all[i] = compute_[i] + layouts_[i];
    }
    for (StageWork& work : divide(record_, plan_, num_stages(), all)) {
      stages_.push_back({.work = std::move(work)});
    }
    for (std::size_t i = 0; i < stages_.size(); ++i) make_stage(i);
  }

  void make_stage(std::size_t number) {
    StageModel& stage = stages_[number];
    const cluster::DeviceKind& device = groups_.slowest_device(rank_of(number));
    stage.buckets = make_buckets(record_, stage.work, plan_);
    stage.bucket_of.assign(record_.parameters.size(), -1);
    for (std::size_t i = 0; i < stage.buckets.size(); ++i) {
      for (const int parameter : stage.buckets[i].parameters) {
        stage.bucket_of[static_cast<std::size_t>(parameter)] = static_cast<int>(i);
      }
    }
    stage.memory = walk_memory(record_, stage.work);
    for (const auto* calls : {&stage.work.forward, &stage.work.backward}) {
      for (const int call : *calls) {
        const auto index = static_cast<std::size_t>(call);
        compute_[index] = compute_seconds(call, device);
        stage.compute += compute_[index];
        stage.layouts += layouts_[index];
        stage.flops += record_.call(call).work.flops;
        stage.weight += compute_[index] * record_.call(call).weight_share;
      }
    }
    for (const RecomputedRegion& region : stage.work.regions) {
      for (int call = region.first; call <= region.last; ++call) {
        stage.recomputation += compute_[static_cast<std::size_t>(call)];
        stage.layouts += layouts_[static_cast<std::size_t>(call)];
        stage.repeated_flops += record_.call(call).work.flops;
      }
    }
  }

  // -- one pass over a stage
  // -------------------------------------------------------------------------

  double gather_seconds(const Bucket& bucket) const {
    return groups_.seconds_of_part(kDataAxis, cut_, Collective::kAllGather, bucket.bytes);
  }

  double reduce_seconds(const Bucket& bucket) const {
    if (bucket.zero_level == 0) {
      return groups_.seconds(kDataAxis, Collective::kAllReduce, bucket.gradient_bytes);
    }
    return groups_.seconds_of_part(kDataAxis, cut_, Collective::kReduceScatter,
                                   bucket.gradient_bytes) +
           groups_.seconds_of_every(kDataAxis, cut_, Collective::kAllReduce,
                                    bucket.gradient_bytes / static_cast<double>(cut_));
  }

  // Builds the tasks of passes over one stage.
  class Pass {
   public:
    Pass(const StepModel& model, const StageModel& stage) : model_(model), stage_(stage) {}

    void add(const PassOptions& options) {
      if (options.has_forward) forward(options);
      if (options.has_backward) backward(options);
    }

    // Waits for all communication.
    void add_last(double seconds) {
      compute_ += seconds;
      for (std::size_t i = 0; i < tasks_.size(); ++i) {
        if (tasks_[i].stream == Stream::kCommunication) needed_.push_back(static_cast<int>(i));
      }
      flush(/*always=*/true);
    }

    double seconds() {
      flush();
      double end = 0;
      for (const TaskSpan& span : run_streams(tasks_)) end = std::max(end, span.end);
      return end;
    }

   private:
    bool gathers(const Bucket& bucket, bool at_start) const {
      if (model_.data_ == 1) return false;
      return bucket.zero_level == 3 || (at_start && bucket.zero_level > 0);
    }

    void forward(const PassOptions& options) {
      begin_gathers();
      for (const int call : stage_.work.forward) {
        gather_for(call, options.gathers_at_start);
        compute_ += seconds_of(call);
      }
      flush();
    }

    void backward(const PassOptions& options) {
      // Without a limit of gathered buckets, those of forward stay gathered.
      if (model_.plan_.gathered_buckets > 0) begin_gathers();
      std::set<std::size_t> repeated;
      std::size_t next_bucket = 0;
      for (std::size_t i = 0; i < stage_.work.backward.size(); ++i) {
        const int call = stage_.work.backward[i];
        repeat_region(model_.record_.call(call).forward_call, repeated);
        gather_for(call, /*at_start=*/false);
        compute_ += seconds_of(call);
        while (options.reduces && next_bucket < stage_.buckets.size() &&
               stage_.buckets[next_bucket].ready_after == static_cast<int>(i)) {
          reduce(stage_.buckets[next_bucket++]);
        }
      }
      flush();
    }

    double seconds_of(int call) const {
      const auto index = static_cast<std::size_t>(call);
      return model_.compute_[index] + model_.layouts_[index];
    }

    void repeat_region(int forward_call, std::set<std::size_t>& repeated) {
      const auto& regions = stage_.work.regions;
      const auto after =
          std::ranges::upper_bound(regions, forward_call, {}, &RecomputedRegion::first);
      if (after == regions.begin()) return;
      const auto number = static_cast<std::size_t>(after - regions.begin() - 1);
      if (regions[number].last < forward_call || !repeated.insert(number).second) return;
      for (int call = regions[number].first; call <= regions[number].last; ++call) {
        gather_for(call, /*at_start=*/false);
        compute_ += seconds_of(call);
      }
    }

    void begin_gathers() {
      gathered_.clear();
      before_gather_.clear();
    }

    void gather_for(int call, bool at_start) {
      for (const int parameter : model_.record_.call(call).parameters) {
        const int number = stage_.bucket_of[static_cast<std::size_t>(parameter)];
        if (number < 0) continue;
        const Bucket& bucket = stage_.buckets[static_cast<std::size_t>(number)];
        if (!gathers(bucket, at_start) || !gathered_.insert(number).second) continue;
        flush();
        before_gather_.push_back(last_compute_);
        Task task = communication(model_.gather_seconds(bucket));
        const auto limit = static_cast<std::size_t>(model_.plan_.gathered_buckets);
        // Space is there once the bucket that many gathers before is not used any more.
        if (bucket.zero_level == 3 && limit > 0 && before_gather_.size() >= limit) {
          const int freed = before_gather_[before_gather_.size() - limit];
          if (freed >= 0) task.after.push_back(freed);
        }
        needed_.push_back(static_cast<int>(tasks_.size()));
        tasks_.push_back(std::move(task));
      }
    }

    void reduce(const Bucket& bucket) {
      if (model_.data_ == 1 || !model_.plan_.data_parallel) return;
      flush();
      Task task = communication(model_.reduce_seconds(bucket));
      if (last_compute_ >= 0) task.after.push_back(last_compute_);
      tasks_.push_back(std::move(task));
    }

    Task communication(double seconds) const {
      return {.stream = Stream::kCommunication,
              .seconds = seconds,
              .compute_share = model_.groups_.compute_share(kDataAxis)};
    }

    void flush(bool always = false) {
      if (compute_ <= 0 && !always) return;
      last_compute_ = static_cast<int>(tasks_.size());
      tasks_.push_back({.seconds = compute_, .after = std::move(needed_)});
      needed_.clear();
      compute_ = 0;
    }

    const StepModel& model_;
    const StageModel& stage_;
    std::vector<Task> tasks_;
    std::set<int> gathered_;          // buckets gathered in this pass
    std::vector<int> before_gather_;  // the computation that ends when each gather is needed
    std::vector<int> needed_;         // what the next computation waits for
    int last_compute_ = -1;
    double compute_ = 0;  // seconds not yet in a task
  };

  // -- the step
  // ----------------------------------------------------------------------------------------

  bool reduces_in(int micro_batch) const {
    if (micro_batch == micro_batches_ - 1) return true;
    return options_.reduces_each_micro_batch && plan_.zero_level >= 2;
  }

  // Time of a step of `count` micro-batches with the first and the last one among them.
  double simulate_step(const StageModel& stage, int count, double optimizer) const {
    Pass pass(*this, stage);
    for (int i = 0; i < count; ++i) {
      const bool is_last = i == count - 1;
      pass.add({.gathers_at_start = i == 0, .reduces = is_last || reduces_in(0)});
    }
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
    prediction.parts = {.compute = count * stage.compute,
                        .recomputation = count * stage.recomputation,
                        .layouts = count * stage.layouts,
                        .optimizer = optimizer};
    prediction.parts.data_exchange =
        seconds - count * (stage.compute + stage.recomputation + stage.layouts) - optimizer;
    prediction.stage_seconds = {stage.compute + stage.recomputation + stage.layouts};
  }

  schedule::Times stage_times() const {
    schedule::Times times;
    times.stages.clear();
    times.communication.clear();
    for (const StageModel& stage : stages_) {
      Pass forward(*this, stage);
      forward.add({.has_backward = false});
      Pass backward(*this, stage);
      backward.add({.has_forward = false,
                    .reduces = options_.reduces_each_micro_batch && plan_.zero_level >= 2});
      const double whole = backward.seconds();
      const double weight = std::min(stage.weight, whole);
      times.stages.push_back({.forward = forward.seconds() / kMilli,
                              .backward_input = (whole - weight) / kMilli,
                              .backward_weight = weight / kMilli,
                              .backward = whole / kMilli});
    }
    for (const schedule::Edge& edge : schedule_->edges) {
      const double bytes = edge.to == edge.from + 1
                               ? stages_[static_cast<std::size_t>(edge.from)].work.boundary_bytes
                               : 0;
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
  double exchange_tail(const StageModel& stage) const {
    if (data_ == 1) return 0;
    Pass without(*this, stage);
    without.add({.has_forward = false});
    Pass with(*this, stage);
    with.add({.has_forward = false, .reduces = true});
    return with.seconds() - without.seconds();
  }

  // The gathers of ZeRO levels 1 and 2 that forward waits for after a step.
  double gather_head(const StageModel& stage) const {
    Pass without(*this, stage);
    without.add({.has_backward = false});
    Pass with(*this, stage);
    with.add({.has_backward = false, .gathers_at_start = true});
    return with.seconds() - without.seconds();
  }

  void time_of_pipeline(Prediction& prediction) {
    const schedule::Times times = stage_times();
    const schedule::Timeline timeline = schedule::simulate(*schedule_, times);
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

  // -- optimizer and memory
  // ----------------------------------------------------------------------------

  double share(const ParameterRecord& parameter, int from_level) const {
    return zero_level_of(plan_, parameter.name) >= from_level ? 1 / static_cast<double>(cut_) : 1;
  }

  std::set<int> parameters_of(int rank) const {
    std::set<int> all;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (rank_of(i) != rank) continue;
      all.insert(stages_[i].work.parameters.begin(), stages_[i].work.parameters.end());
    }
    return all;
  }

  double optimizer_seconds(int rank) const {
    const cluster::DeviceKind& device = groups_.slowest_device(rank);
    double bytes = 0;
    double kernels = 0;
    for (const int number : parameters_of(rank)) {
      const ParameterRecord& parameter = record_.parameters[static_cast<std::size_t>(number)];
      if (!parameter.requires_grad) continue;
      // State is read and written, the gradient read, the parameter read and written.
      const double element = 2 * optimizer_bytes(parameter, options_) +
                             gradient_bytes(parameter, options_) +
                             2 * parameter.bytes / std::max(1.0, parameter.elements);
      bytes += parameter.elements * share(parameter, 1) * element;
      kernels += options_.optimizer_kernels;
    }
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

  void add_memory(Prediction& prediction) {
    std::vector<schedule::StageBytes> bytes;
    for (const StageModel& stage : stages_) {
      bytes.push_back(
          {.activations = static_cast<std::int64_t>(stage.memory.kept), .weight_inputs = 0});
    }
    std::vector<schedule::RankMemory> peaks;
    if (schedule_) peaks = schedule::peak_memory(*schedule_, bytes);
    for (int rank = 0; rank < pipe_; ++rank) {
      RankMemoryPrediction memory = state_of(rank);
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (rank_of(i) != rank) continue;
        const ActivationMemory& activations = stages_[i].memory;
        const double peak = std::max(activations.forward_peak, activations.backward_peak);
        if (peak - activations.kept >= memory.temporary) {
          memory.temporary = peak - activations.kept;
          memory.peak_module = activations.peak_module;
          memory.activations_by_module = activations.by_module;
        }
        if (!schedule_) memory.activations = activations.kept;
      }
      if (schedule_) {
        memory.activations = static_cast<double>(peaks[static_cast<std::size_t>(rank)].peak_bytes);
      }
      memory.inputs = rank == 0 ? record_.input_bytes : 0;
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
    if (data_ == 1) return memory;
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
  std::int64_t data_;
  std::int64_t pipe_;
  std::int64_t cut_;  // ranks over which ZeRO shards
  int micro_batches_;
  std::optional<schedule::Schedule> schedule_;
  std::vector<StageModel> stages_;
  std::vector<double> compute_;  // seconds of each call
  std::vector<double> layouts_;  // seconds of the collectives of each call
};

}  // namespace

Prediction predict(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
                   const TrainingOptions& options) {
  check_predictable(plan);
  const cluster::Cluster used = cluster.with_ranks(ranks_of(plan));
  cluster::check_cluster(used);
  return StepModel(record, plan, used, options).run();
}

Prediction predict(ModuleRef module, const Plan& plan, const cluster::Cluster& cluster,
                   const std::function<at::Tensor()>& forward, const TrainingOptions& options) {
  check_predictable(plan);
  return predict(record_module(module, plan, forward), plan, cluster, options);
}

}  // namespace trireme::predict

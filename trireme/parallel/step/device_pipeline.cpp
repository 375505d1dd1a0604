// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/device_pipeline.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/devices/device_tensors.h>
#include <trireme/parallel/pipeline/devices/workers.h>
#include <trireme/parallel/pipeline/evaluation_mode.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/lru_cache.h>
#include <trireme/parallel/pipeline/micro_batches.h>
#include <trireme/parallel/pipeline/staged_graph.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <utility>

namespace trireme {
namespace {

constexpr int kTimedSteps = 3;

[[noreturn]] void refuse(const std::string& what, const char* hint) {
  throw UsageError("a pipeline over the devices of one process cannot have " + what, hint);
}

void check_plan(const Plan& plan) {
  const char* const use_processes = "start a process for each rank, and use Pipeline";
  if (!plan.mesh.empty()) refuse("a mesh", use_processes);
  if (!plan.layouts.empty()) refuse("layouts over ranks", use_processes);
  if (cuts_anything(plan)) refuse("parameters or optimizer state cut over ranks", use_processes);
  if (plan.sync_batch_norm) {
    refuse("sync_batch_norm", "set it to false: batch norm is over a micro-batch");
  }
}

// On the processor what is kept is in host memory already.
void check_offload(const Plan& plan, const std::vector<at::Device>& devices) {
  const bool has_processor =
      std::ranges::any_of(devices, [](at::Device one) { return one.is_cpu(); });
  if (plan.offload_activations && has_processor) {
    refuse("offload_activations where a stage is on the processor: its memory is the host's",
           "set it to false; recompute and activation_bytes make stages keep less there");
  }
}

// With its number where it has none.
at::Device checked(at::Device device) {
  if (device.is_cpu()) return at::Device(at::kCPU);
  const std::string name = device.str();
  const bool is_known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count = is_known ? c10::impl::VirtualGuardImpl(device.type()).deviceCount() : 0;
  if (count > 0 && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  if (device.has_index() && device.index() < count) return device;
  throw UsageError(join_message("there is no device ", name, ": LibTorch sees ", count, " of type ",
                                c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
                   "name devices that are there; the processor is \"cpu\"");
}

std::vector<at::Device> checked(const std::vector<at::Device>& given) {
  if (given.empty()) {
    throw UsageError("a pipeline was given no devices", "give it one for each rank along pipe");
  }
  std::vector<at::Device> devices;
  for (const at::Device device : given) {
    const at::Device checked_device = checked(device);
    if (!checked_device.is_cpu() && std::ranges::find(devices, checked_device) != devices.end()) {
      throw UsageError(join_message("device ", checked_device.str(), " is named twice"),
                       "name it once; plan.chunks gives it several stages");
    }
    devices.push_back(checked_device);
  }
  return devices;
}

// What steps change that are not to count.
class StateAside {
 public:
  explicit StateAside(const torch::nn::Module& module) {
    const c10::NoGradGuard no_graph;
    for (const at::Tensor& parameter : module.parameters()) {
      gradients_.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
    }
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.clone());
  }
  // After a failure of the device nothing can be copied on it.
  ~StateAside() {
    try {
      put_back();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the failure itself is told
    }
  }
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

  void put_back() {
    const c10::NoGradGuard no_graph;
    for (auto& [parameter, gradient] : std::exchange(gradients_, {})) {
      parameter.mutable_grad() = gradient;
    }
    for (auto& [buffer, values] : std::exchange(buffers_, {})) buffer.copy_(values);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

// Casts are kept by LibTorch for all threads of a process, and each device type has its own.
void check_without_autocast(const graph::Graph& graph) {
  for (const graph::Node& node : graph.nodes) {
    if (!node.autocast.is_any_enabled()) continue;
    refuse("autocast", "leave the autocast region; or cast the module, or train over ranks");
  }
}

std::vector<at::Device> devices_of(const pipeline::MicroBatches& micro_batches) {
  std::vector<at::Device> devices;
  for (const at::Tensor& tensor : micro_batches.front()) devices.push_back(tensor.device());
  return devices;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

struct DevicePipeline::Impl {
  // What is made for batches of one shape.
  struct Prepared {
    pipeline::StagedGraph staged;
    std::vector<std::optional<pipeline::Executor>> executors;  // by rank
    std::int64_t group;                                        // which one of the workers
    std::int64_t num_uses = 0;  // steps or evaluations that it was for
  };
  using ByKey = pipeline::LruCache<Prepared>;

  Plan plan_of(std::int64_t count) const;
  pipeline::SplitBatch cut(const std::vector<at::Tensor>& batch, std::int64_t count) const;
  Prepared& prepared_for(const pipeline::SplitBatch& batch, std::int64_t count);
  Prepared& evaluation_for(const pipeline::SplitBatch& batch, std::int64_t count);
  void assign_stages(const pipeline::SplitBatch& batch, std::int64_t count);
  template <typename Make>
  Prepared& find(ByKey& all, const pipeline::SplitBatch& batch, const Make& make);
  void make_executors(Prepared& ready);
  pipeline::StepResult run(Prepared& ready, const pipeline::SplitBatch& batch,
                           const pipeline::StepOptions& options);
  double time_step(const pipeline::SplitBatch& batch, std::int64_t count);
  const Prepared& last() const;

  torch::nn::Module& module;
  graph::Forward forward;
  Plan plan;
  std::unique_ptr<pipeline::Workers> workers;
  std::unique_ptr<pipeline::Placement> placement;
  std::uint64_t seed = 0;
  bool finds_micro_batches = false;
  std::int64_t steps = 0;
  std::optional<pipeline::StagedGraph> first{};  // which says which rank trains what
  ByKey prepared{kMostRecords};
  ByKey evaluated{kMostRecords};
  Prepared* latest = nullptr;
};

Plan DevicePipeline::Impl::plan_of(std::int64_t count) const {
  Plan own_plan = plan;
  own_plan.mesh = {{kStageAxis, workers->size()}};
  own_plan.micro_batches = count;
  return own_plan;
}

pipeline::SplitBatch DevicePipeline::Impl::cut(const std::vector<at::Tensor>& batch,
                                               std::int64_t count) const {
  return pipeline::split_batch(batch, {.count = count, .may_be_fewer = finds_micro_batches}, module,
                               comm::Group::self());
}

void DevicePipeline::Impl::assign_stages(const pipeline::SplitBatch& batch, std::int64_t count) {
  if (first) return;
  pipeline::StagedGraph staged(module, forward, batch.micro_batches, plan_of(count));
  check_without_autocast(staged.graph());
  placement->add(staged);
  first.emplace(std::move(staged));
}

template <typename Make>
DevicePipeline::Impl::Prepared& DevicePipeline::Impl::find(ByKey& all,
                                                           const pipeline::SplitBatch& batch,
                                                           const Make& make) {
  Prepared* const found = all.find(batch.key);
  if (found == nullptr) {
    return all.add(batch.key, std::make_unique<Prepared>(
                                  Prepared{.staged = make(), .executors = {}, .group = 0}));
  }
  if (std::has_single_bit(static_cast<std::uint64_t>(found->num_uses))) {
    found->staged.check_still_true(module, forward, batch.micro_batches);
  }
  return *found;
}

DevicePipeline::Impl::Prepared& DevicePipeline::Impl::prepared_for(
    const pipeline::SplitBatch& batch, std::int64_t count) {
  Prepared& found = find(prepared, batch, [&] {
    const bool is_first = !first;
    assign_stages(batch, count);
    if (is_first) return *first;
    pipeline::StagedGraph staged(module, forward, batch.micro_batches, plan_of(count), *first);
    check_without_autocast(staged.graph());
    staged.check_same_parameters(*first);
    placement->add(staged);
    return staged;
  });
  latest = &found;
  return found;
}

DevicePipeline::Impl::Prepared& DevicePipeline::Impl::evaluation_for(
    const pipeline::SplitBatch& batch, std::int64_t count) {
  return find(evaluated, batch, [&] {
    auto staged = pipeline::StagedGraph::for_evaluation(module, forward, batch.micro_batches,
                                                        plan_of(count), *first);
    check_without_autocast(staged.graph());
    placement->add(staged);
    return staged;
  });
}

void DevicePipeline::Impl::make_executors(Prepared& ready) {
  workers->group(0);  // makes one where there is none, or no longer
  if (!ready.executors.empty() && ready.group == workers->num_groups()) return;
  std::vector<std::optional<pipeline::Executor>> executors(
      static_cast<std::size_t>(workers->size()));
  workers->run([&](int rank) {
    const pipeline::Place place = placement->place(rank);
    pipeline::ExecutorOptions options;
    options.device = place.device;
    executors[static_cast<std::size_t>(rank)].emplace(
        ready.staged.program(), ready.staged.code_of(rank, {.seed = seed}, place),
        workers->group(rank), options);
  });
  ready.executors = std::move(executors);
  ready.group = workers->num_groups();
}

pipeline::StepResult DevicePipeline::Impl::run(Prepared& ready, const pipeline::SplitBatch& batch,
                                               const pipeline::StepOptions& options) {
  make_executors(ready);
  placement->follow();
  std::vector<pipeline::StepResult> results(ready.executors.size());
  workers->run(
      [&](int rank) {
        const auto index = static_cast<std::size_t>(rank);
        results[index] = ready.executors[index]->step(batch.micro_batches, steps, options);
      },
      devices_of(batch.micro_batches));
  const pipeline::Program& program = ready.staged.program();
  const auto of_stage = [&](int stage) -> pipeline::StepResult& {
    return results[static_cast<std::size_t>(program.schedule.rank_of(stage))];
  };
  pipeline::StepResult whole;
  whole.loss = of_stage(program.loss_stage).loss;
  whole.losses = of_stage(program.loss_stage).losses;
  for (std::size_t i = 0; i < program.results.size(); ++i) {
    whole.results.push_back(std::move(of_stage(program.results[i].stage).results[i]));
  }
  whole.report = std::move(results.front().report);
  return whole;
}

double DevicePipeline::Impl::time_step(const pipeline::SplitBatch& batch, std::int64_t count) {
  Prepared& ready = prepared_for(batch, count);
  const auto began = std::chrono::steady_clock::now();
  run(ready, batch, {});
  for (int rank = 0; rank < workers->size(); ++rank) {
    const at::Device device = workers->device(rank);
    if (device.is_cpu()) continue;
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

const DevicePipeline::Impl::Prepared& DevicePipeline::Impl::last() const {
  if (latest == nullptr) {
    throw UsageError("the pipeline has not run a step, which captures the module",
                     "call step() first");
  }
  return *latest;
}

DevicePipeline::DevicePipeline(ModuleRef module, graph::Forward forward, const Plan& plan,
                               const std::vector<at::Device>& devices) {
  check_plan(plan);
  if (plan.micro_batches == 0 && own_schedule(plan)) {
    refuse("a schedule of its own for any number of micro-batches",
           "set micro_batches to the number that the schedule is for");
  }
  const std::vector<at::Device> usable = checked(devices);
  check_offload(plan, usable);
  impl_ = std::make_unique<Impl>(Impl{.module = *module,
                                      .forward = std::move(forward),
                                      .plan = plan,
                                      .workers = std::make_unique<pipeline::Workers>(usable),
                                      .placement = std::make_unique<pipeline::Placement>(usable),
                                      .seed = at::detail::getDefaultCPUGenerator().current_seed(),
                                      .finds_micro_batches = plan.micro_batches == 0});
  validate(impl_->plan_of(std::max<std::int64_t>(plan.micro_batches, plan.micro_batches == 0)),
           impl_->workers->size());
}

DevicePipeline::DevicePipeline(DevicePipeline&&) noexcept = default;
DevicePipeline& DevicePipeline::operator=(DevicePipeline&&) noexcept = default;
DevicePipeline::~DevicePipeline() = default;

PipelineStep DevicePipeline::step(const std::vector<at::Tensor>& batch,
                                  const PipelineStepOptions& options) {
  Impl& impl = *impl_;
  if (impl.plan.micro_batches == 0) find_micro_batches(batch);
  const pipeline::SplitBatch cut = impl.cut(batch, impl.plan.micro_batches);
  Impl::Prepared& prepared = impl.prepared_for(cut, impl.plan.micro_batches);
  pipeline::StepResult result = impl.run(prepared, cut, {.report = options.report});
  ++impl.steps;
  ++prepared.num_uses;
  return {.loss = std::move(result.loss), .report = std::move(result.report)};
}

PipelineEvaluation DevicePipeline::evaluate(const std::vector<at::Tensor>& batch) {
  Impl& impl = *impl_;
  const std::int64_t count = std::max<std::int64_t>(impl.plan.micro_batches, 1);
  const auto cut = [&] {
    return pipeline::split_batch(batch, {.count = count, .may_be_fewer = true}, impl.module,
                                 comm::Group::self());
  };
  impl.assign_stages(cut(), count);
  const pipeline::EvaluationMode mode(impl.module);
  const pipeline::SplitBatch evaluated = cut();
  Impl::Prepared& prepared = impl.evaluation_for(evaluated, count);
  prepared.staged.check_results_join();
  const pipeline::StepResult result = impl.run(prepared, evaluated, {});
  PipelineEvaluation evaluation{.loss = result.loss};
  for (const std::vector<at::Tensor>& parts : result.results) {
    evaluation.results.push_back(pipeline::joined(parts));
  }
  ++prepared.num_uses;
  return evaluation;
}

void DevicePipeline::prepare(const std::vector<at::Tensor>& batch) {
  Impl& impl = *impl_;
  const std::int64_t count = std::max<std::int64_t>(impl.plan.micro_batches, 1);
  impl.prepared_for(impl.cut(batch, count), count);
}

std::vector<SplitTime> DevicePipeline::find_micro_batches(const std::vector<at::Tensor>& batch) {
  Impl& impl = *impl_;
  if (own_schedule(impl.plan)) {
    throw UsageError(join_message("the schedule of this plan is for ", impl.plan.micro_batches,
                                  " micro-batches, and no other number can be measured"),
                     "name a kind of schedules, or leave find_micro_batches out");
  }
  std::map<std::int64_t, double> times;
  const auto take = [&](std::int64_t count) {
    if (count < 1 || times.contains(count)) return;
    const pipeline::SplitBatch cut = impl.cut(batch, count);
    if (std::ssize(cut.micro_batches) < count) return;
    StateAside aside(impl.module);
    impl.time_step(cut, count);  // records, and takes memory
    std::vector<double> taken(kTimedSteps);
    std::ranges::generate(taken, [&] { return impl.time_step(cut, count); });
    aside.put_back();
    times[count] = median(std::move(taken));
  };
  const auto best = [&] {
    return std::ranges::min_element(times, {}, &std::pair<const std::int64_t, double>::second)
        ->first;
  };
  // Larger micro-batches may not fit where smaller ones do.
  std::exception_ptr does_not_fit;
  const auto measure = [&](std::int64_t count) {
    try {
      take(count);
    } catch (const c10::OutOfMemoryError&) {
      does_not_fit = std::current_exception();
    }
    impl.prepared.clear();  // with what its executors hold
    impl.latest = nullptr;
  };
  const pipeline::SplitBatch whole = impl.cut(batch, 1);
  impl.assign_stages(whole, 1);
  const std::int64_t rows = whole.micro_batches.front().front().size(0);
  for (std::int64_t count = 1; count <= rows && (times.empty() || count <= 4 * best());
       count *= 2) {
    measure(count);
  }
  if (times.empty()) std::rethrow_exception(does_not_fit);
  const std::int64_t of_powers = best();
  measure(of_powers * 3 / 4);
  measure(of_powers * 3 / 2);
  impl.plan.micro_batches = best();
  std::vector<SplitTime> all;
  for (const auto& [count, seconds] : times) {
    all.push_back({.micro_batches = static_cast<int>(count),
                   .rows = (rows + count - 1) / count,
                   .seconds = seconds});
  }
  return all;
}

std::int64_t DevicePipeline::micro_batches() const noexcept { return impl_->plan.micro_batches; }
const graph::Graph& DevicePipeline::graph() const { return impl_->last().staged.graph(); }
const std::vector<int>& DevicePipeline::boundaries() const {
  return impl_->last().staged.boundaries();
}
const schedule::Schedule& DevicePipeline::schedule() const {
  const Impl::Prepared& ready = impl_->last();
  return ready.executors.empty() ? ready.staged.program().schedule
                                 : ready.executors.front()->schedule();
}
const Recomputation& DevicePipeline::recomputation() const {
  return impl_->last().staged.recomputation();
}
std::string DevicePipeline::to_string() const { return impl_->last().staged.to_string(); }

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/training_step.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/module/evaluation_mode.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/module/tensor_lines.h>
#include <trireme/parallel/pipeline/execution/on_mesh.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/parallel/step/training_step_impl.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/parallel/tensor_parallel/operator_layouts.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_config.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace trireme {
namespace {

using detail::NamedTensor;

// Returns the device of the module, on which this rank runs its stages.
at::Device device_of(const std::vector<NamedTensor>& tensors) {
  const auto found =
      std::ranges::find_if(tensors, [](const NamedTensor& item) { return !item.tensor.is_meta(); });
  return found == tensors.end() ? at::Device(at::kCPU) : found->tensor.device();
}

void check_on_one_device(const std::vector<NamedTensor>& tensors, at::Device device) {
  for (const NamedTensor& item : tensors) {
    if (item.tensor.is_meta() || item.tensor.device() == device) continue;
    throw UsageError(join_message("the stages of a rank run on one device, but ",
                                  tensors.front().name, " is on ", device.str(), " and ", item.name,
                                  " on ", item.tensor.device().str()),
                     "move the module to one device; or name the devices of its stages in "
                     "TrainingStepOptions::devices, and leave it on the CPU");
  }
}

std::string names_of(const StepFunctions& functions) {
  std::string names;
  for (const auto& [name, forward] : functions) names += name + "\n";
  return names;
}

void check_functions(const StepFunctions& functions) {
  for (const auto& [name, forward] : functions) {
    if (!forward) {
      throw UsageError(join_message("forward of a training step", name.empty() ? "" : ", function ",
                                    name, ", is empty"),
                       "give it one that can be called");
    }
    if (functions.size() > 1 && name.empty()) {
      throw UsageError("a function of a training step has no name", "give each a name of its own");
    }
    if (std::ranges::count(functions, name, &StepFunctions::value_type::first) > 1) {
      throw UsageError(join_message("two functions of a training step are called '", name, "'"),
                       "give each a name of its own");
    }
  }
  if (functions.empty()) throw UsageError("a training step was given no functions", "give it one");
}

// Returns the seed of rank 0's default generator on all ranks.
std::uint64_t shared_seed(const comm::Group& group) {
  at::Tensor seed = at::empty({1}, at::kLong);
  auto* const value = seed.mutable_data_ptr<std::int64_t>();
  *value = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  comm::broadcast(seed, 0, group, "seed of random numbers");
  return static_cast<std::uint64_t>(*value);
}

// Plans the layouts of parameters, and sets what operators on the mesh of the stages depend on.
detail::ModuleLayouts lay_out(const torch::nn::Module& module, const DeviceMesh& mesh,
                              const Plan& plan, const std::optional<cluster::Cluster>& cluster) {
  if (cluster) detail::set_links(mesh, plan, *cluster);
  if (mesh.defined()) {
    tensor::set_sequence_attention(mesh, plan.sequence_attention);
    detail::set_operator_layouts(&module, mesh, plan.operators);
  }
  return {module, mesh, plan.layouts};
}

// Returns true if an optimizer steps any of these tensors.
bool steps_any(const torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& own) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& stepped) {
      return std::ranges::any_of(own,
                                 [&](const at::Tensor& tensor) { return tensor.is_same(stepped); });
    });
  });
}

// Sends each tensor from the rank where it is defined to all others. Exactly one rank has it, and
// the others do not know its shape, so shapes are exchanged as text first.
// @param device of this rank's stages.
void share(std::vector<at::Tensor>& tensors, at::Device device, const comm::Group& group) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  std::map<std::string, std::size_t> index_of;
  for (const at::Tensor& tensor : tensors) {
    const std::string name = std::to_string(named.size());
    index_of[name] = named.size();
    named.emplace_back(name, tensor);
  }
  const std::vector<std::string> texts = comm::all_gather_text(detail::to_lines(named), group);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const auto& line : detail::parse_lines(texts[static_cast<std::size_t>(rank)])) {
      at::Tensor& tensor = tensors[index_of.at(line.name)];
      tensor = tensor.defined()
                   ? tensor.contiguous()
                   : at::empty(line.sizes, at::TensorOptions(line.type).device(device));
      comm::broadcast(tensor, rank, group, "result " + line.name);
    }
  }
}

// Returns the losses of all micro-batches on every rank, sent by the rank with the loss stage.
at::Tensor share_losses(const pipeline::StepResult& result, const pipeline::Program& program,
                        const pipeline::StageRanks& ranks, const comm::Group& group) {
  at::Tensor losses = at::empty({program.schedule.micro_batches}, program.loss_dtype);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    losses.select(0, static_cast<std::int64_t>(i)).copy_(result.losses[i].reshape({}));
  }
  if (group.size() == 1) return losses;
  const int rank = program.schedule.rank_of(program.loss_stage);
  comm::broadcast(losses, ranks.process_of(rank), group, "losses");
  return losses;
}

// The group's mesh has one rank along pipe if devices of each process take its place.
DeviceMesh mesh_of_group(const Plan& plan, const comm::Group& group, bool has_devices) {
  std::vector<MeshAxis> axes = plan.mesh;
  if (has_devices) std::ranges::find(axes, kStageAxis, &MeshAxis::name)->size = 1;
  return {group, axes};
}

void check_predictable(const TrainingStepOptions& options) {
  if (options.devices.empty()) return;
  throw UsageError("a TrainingStep over several devices of one process cannot be predicted",
                   "leave TrainingStepOptions::devices empty if world.launcher is `prediction`: "
                   "ranks take the place of devices");
}

}  // namespace

TrainingStep::TrainingStep(ModuleRef module, graph::Forward forward, const Plan& plan,
                           const comm::Group& group, const TrainingStepOptions& options)
    : TrainingStep(module, StepFunctions{{"", std::move(forward)}}, plan, group, options) {}

TrainingStep::TrainingStep(ModuleRef given, StepFunctions functions, const Plan& plan,
                           const comm::Group& group, const TrainingStepOptions& options) {
  comm::check_given(group, "TrainingStep");
  torch::nn::Module& module = *given;
  std::vector<NamedTensor> tensors = detail::named_tensors(module.named_parameters());
  const std::vector<NamedTensor> buffers = detail::named_tensors(module.named_buffers());
  if (auto* const predicted = detail::PredictedStep::of_process()) {
    check_functions(functions);
    check_predictable(options);
    impl_ = std::make_unique<Impl>(
        Impl{.module = module,
             .functions = std::move(functions),
             .plan = predicted->begin(&module, {}, plan, group, PlanEntry::kTrainingStep),
             .group = group,
             .stages = group,
             .data = group,
             .claim = pipeline::ModuleClaim({})});
    return;
  }
  const at::Device device = device_of(tensors);
  std::vector<at::Device> devices;
  PlanUse use = {.ranks = group.size(), .entry = PlanEntry::kTrainingStep};
  // Ranks must make these checks in the same order. They throw on all ranks if they fail on one, so
  // that none waits for a rank that has thrown.
  std::optional<cluster::Cluster> cluster;
  std::string compared;
  detail::succeed_together(group, "take the plan and the devices", [&] {
    devices = pipeline::usable_devices(options.devices);
    const auto is_accelerator = [](at::Device item) { return !item.is_cpu(); };
    use.devices = static_cast<int>(devices.size());
    use.on_accelerators =
        devices.empty() ? is_accelerator(device) : std::ranges::all_of(devices, is_accelerator);
    detail::check_request_is_used("TrainingStep");
    check_plan(plan, use);
    check_functions(functions);
    cluster = detail::cluster_of_environment();
    compared = trireme::to_string(plan) + detail::line_of(cluster);
  });
  detail::check_same_text("plan", compared, group, detail::kSamePlanHint);
  detail::check_same_text("number of devices", std::to_string(use.devices), group);
  detail::check_same_on_all_ranks(tensors, "parameter", group);
  detail::check_same_on_all_ranks(buffers, "buffer", group);
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  detail::check_same_text("functions of the training step", names_of(functions), group);
  if (devices.empty()) {
    detail::check_same_text("type of the module's device",
                            c10::DeviceTypeName(device.type(), /*lower_case=*/true), group);
  }
  std::optional<pipeline::ModuleClaim> claim;
  detail::succeed_together(group, "take the module", [&] {
    pipeline::check_plain(tensors);
    if (devices.empty()) check_on_one_device(tensors, device);
    detail::check_no_hooks(tensors);
    claim.emplace(tensors);
  });
  if (plan.broadcast_parameters && group.size() > 1) detail::broadcast_all(tensors, group);
  const Plan whole = with_pipe_and_data(plan, use);
  const DeviceMesh mesh = mesh_of_group(whole, group, !devices.empty());
  const DeviceMesh of_stages = pipeline::mesh_of_stages(mesh);
  detail::ModuleLayouts layouts;
  detail::succeed_together(group, "lay out the module",
                           [&] { layouts = lay_out(module, of_stages, whole, cluster); });
  impl_ = std::make_unique<Impl>(Impl{.module = module,
                                      .functions = std::move(functions),
                                      .plan = whole,
                                      .group = group,
                                      .stages = mesh.group(mesh.axis(kStageAxis)),
                                      .data = mesh.group(mesh.axis(kDataAxis)),
                                      .layouts = std::move(layouts),
                                      .has_devices = !devices.empty(),
                                      .finds_micro_batches = plan.micro_batches == 0,
                                      .seed = shared_seed(group),
                                      .claim = std::move(*claim)});
  detail::succeed_together(group, "start its devices", [&] {
    impl_->ranks = devices.empty() ? pipeline::rank_of_group(impl_->stages, impl_->layouts, device)
                                   : pipeline::devices_of_process(devices);
  });
}

TrainingStep::TrainingStep(TrainingStep&&) noexcept = default;
TrainingStep& TrainingStep::operator=(TrainingStep&&) noexcept = default;
TrainingStep::~TrainingStep() = default;

// The core of a step. Its callers have cut the batch. It finds or makes a record of the module,
// runs it on the ranks along pipe, and sums the gradients along data.
pipeline::StepResult TrainingStep::Impl::run_step(
    const pipeline::SplitBatch& batch, std::int64_t number, const pipeline::StepOptions& options,
    const std::function<void(pipeline::StepResult&)>& finish) {
  // If stages were assigned before, split_for() has checked the parameters together with the batch.
  const bool was_checked = parameters.has_value();
  pipeline::Record& record = training_record(batch);
  if (!was_checked) {
    detail::succeed_together(group, "begin a step", [&] { parameters->check_before_step(); });
  }
  parameters->begin_step();
  pipeline::StepResult result = abort_on_error([&] {
    follow_buffers(record);
    pipeline::StepResult of_step = run(record, batch, number, options);
    parameters->finish_step(record.staged.program().sum_of_weights());
    if (finish) finish(of_step);
    return of_step;
  });
  ++steps;
  ++record.num_uses;
  mark_outdated();
  return result;
}

pipeline::StepResult TrainingStep::Impl::run(pipeline::Record& record,
                                             const pipeline::SplitBatch& batch, std::int64_t number,
                                             const pipeline::StepOptions& options) {
  ranks->prepare(record,
                 runner_options());  // makes executors again if a failure ended the device group
  // Gathers must start in the same order on all processes, which threads of devices cannot ensure.
  if (has_devices) parameters->parallelized().gather_parameters();
  return ranks->run(record, batch.micro_batches, number, options);
}

void TrainingStep::Impl::follow_buffers(const pipeline::Record& record) const {
  if (!plan.broadcast_buffers || data.size() == 1) return;
  const int num_ranks = record.staged.program().schedule.num_ranks();
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (!ranks->is_own(rank, stages)) continue;
    for (const auto& [name, buffer] : record.staged.buffers_of(rank)) {
      detail::broadcast_strided(detail::memory_of(buffer), 0, data, name);
    }
  }
}

// After a step, tensors that other ranks train are outdated here. Marking them is skipped if
// nothing has written to a marked tensor since the last time.
void TrainingStep::Impl::mark_outdated() {
  const std::uint64_t num_writes = pipeline::ModuleClaim::num_writes();
  if (std::exchange(outdated_at, num_writes) == num_writes) return;
  claim.set_outdated(parameters->trained_elsewhere());
}

// Aborts all groups if this rank fails, because other ranks would wait for it. The executor aborts
// its own group only for failures within a step, and knows neither the ranks along data nor those
// that share the work on a stage.
template <typename Call>
auto TrainingStep::Impl::abort_on_error(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    if (group.size() == 1) throw;
    const std::string reason =
        join_message("rank ", group.rank(), " of the pipelines failed: ", message_of(error));
    detail::abort(stages, reason);
    parameters->parallelized().abort(reason);
    throw;
  }
}

// Records forward and backward of the first micro-batch of a step that is predicted.
at::Tensor TrainingStep::Impl::record(detail::PredictedStep& predicted,
                                      const pipeline::SplitBatch& batch) {
  return predicted.run([&] { return forward(batch)(batch.micro_batches.front()).front(); });
}

StepOutput TrainingStep::step(const std::vector<at::Tensor>& batch, const StepOptions& options) {
  Impl& impl = *impl_;
  if (auto* const predicted = detail::PredictedStep::of_process()) {
    const pipeline::SplitBatch split = pipeline::split_batch(
        batch, impl.split_for(Impl::Purpose::kTraining, options.function), impl.module, impl.group);
    return {.loss = impl.record(*predicted, split)};
  }
  if (impl.plan.micro_batches == 0) find_micro_batches(batch);
  const pipeline::SplitBatch split = pipeline::split_batch(
      batch, impl.split_for(Impl::Purpose::kTraining, options.function), impl.module, impl.group);
  pipeline::StepResult result =
      impl.run_step(split, impl.steps, {.share_loss = true, .report = options.report}, {});
  return {.loss = std::move(result.loss), .report = std::move(result.report)};
}

MicroBatchResults TrainingStep::step_micro_batches(const MicroBatches& micro_batches,
                                                   const MicroBatchStepOptions& options) {
  Impl& impl = *impl_;
  const pipeline::SplitBatch batch = pipeline::take_batch(
      micro_batches, impl.split_for(Impl::Purpose::kTraining, options.function), impl.module,
      impl.group);
  if (auto* const predicted = detail::PredictedStep::of_process()) {
    return {.losses = impl.record(*predicted, batch).expand({std::ssize(batch.micro_batches)})};
  }
  MicroBatchResults results;
  impl.run_step(batch, options.number < 0 ? impl.steps : options.number,
                {.share_loss = false, .report = options.report, .scale = options.scale},
                [&](pipeline::StepResult& result) {
                  results.losses =
                      share_losses(result, impl.latest->staged.program(), *impl.ranks, impl.stages);
                  results.report = std::move(result.report);
                });
  return results;
}

StepEvaluation TrainingStep::evaluate(const std::vector<at::Tensor>& batch,
                                      const EvaluateOptions& options) {
  if (auto* const predicted = detail::PredictedStep::of_process()) predicted->refuse("evaluate()");
  Impl& impl = *impl_;
  const auto split = [&] {
    return pipeline::split_batch(batch,
                                 impl.split_for(Impl::Purpose::kEvaluation, options.function),
                                 impl.module, impl.group);
  };
  // Stages are assigned in the module's own mode, and before the mode changes. The key of a batch
  // holds the mode, so the batch is split again.
  if (!impl.parameters) impl.assign_stages(split());
  const detail::EvaluationMode mode(impl.module);
  const pipeline::SplitBatch evaluated = split();
  pipeline::Record& record = impl.evaluation_record(evaluated, impl.group);
  record.staged.check_results_join();
  StepEvaluation evaluation;
  impl.abort_on_error([&] {
    impl.follow_buffers(record);
    pipeline::StepResult result =
        impl.run(record, evaluated, impl.steps, {.share_loss = true, .report = false});
    evaluation.loss = std::move(result.loss);
    for (const std::vector<at::Tensor>& parts : result.results) {
      evaluation.results.push_back(parts.empty() ? at::Tensor() : pipeline::joined(parts));
    }
    if (options.share_results && impl.stages.size() > 1) {
      share(evaluation.results, impl.ranks->device(), impl.stages);
    };
  });
  ++record.num_uses;
  return evaluation;
}

MicroBatchResults TrainingStep::evaluate_micro_batches(const MicroBatches& micro_batches,
                                                       const EvaluateOptions& options) {
  if (auto* const predicted = detail::PredictedStep::of_process()) predicted->refuse("evaluate()");
  Impl& impl = *impl_;
  impl.own();
  const detail::EvaluationMode mode(impl.module);
  MicroBatchResults all;
  impl.abort_on_error([&] {
    const pipeline::SplitBatch batch = pipeline::take_batch(
        micro_batches, impl.split_for(Impl::Purpose::kEvaluation, options.function), impl.module,
        impl.stages);
    pipeline::Record& record = impl.evaluation_record(batch, impl.stages);
    pipeline::StepResult result =
        impl.run(record, batch, impl.steps, {.share_loss = false, .report = false});
    all.losses = share_losses(result, record.staged.program(), *impl.ranks, impl.stages);
    all.results = std::move(result.results);
    for (std::vector<at::Tensor>& parts : all.results) {
      parts.resize(micro_batches.size());
      if (options.share_results && impl.stages.size() > 1) {
        share(parts, impl.ranks->device(), impl.stages);
      };
    }
    ++record.num_uses;
  });
  return all;
}

void TrainingStep::assign_stages(const MicroBatches& micro_batches) {
  Impl& impl = *impl_;
  if (impl.parameters || detail::PredictedStep::of_process() != nullptr) return;
  const pipeline::SplitBatch batch = pipeline::take_batch(
      micro_batches, impl.split_for(Impl::Purpose::kEvaluation, ""), impl.module, impl.group);
  detail::succeed_together(impl.group, "read its batch",
                           [&] { impl.check_same_values(batch.micro_batches); });
  impl.assign_stages(batch);
}

bool TrainingStep::has_stages() const noexcept { return impl_->parameters.has_value(); }
std::uint64_t TrainingStep::seed() const noexcept { return impl_->seed; }

void TrainingStep::set_seed(std::uint64_t seed) {
  if (std::exchange(impl_->seed, seed) != seed) impl_->forget_records();
}

void TrainingStep::prepare(const std::vector<at::Tensor>& batch, const std::string& function) {
  if (detail::PredictedStep::of_process() != nullptr) return;
  Impl& impl = *impl_;
  impl.training_record(pipeline::split_batch(
      batch, impl.split_for(Impl::Purpose::kTraining, function), impl.module, impl.group));
}

void TrainingStep::shard(torch::optim::Optimizer& optimizer) {
  if (detail::PredictedStep::of_process() != nullptr) return;
  Impl& impl = *impl_;
  if (!cuts_anything(impl.plan) || impl.data.size() == 1) return;
  detail::succeed_together(impl.group, "shard its optimizer", [&] { impl.shard(optimizer); });
}

void TrainingStep::Impl::shard(torch::optim::Optimizer& optimizer) {
  check_can_shard(optimizer);
  std::vector<at::Tensor> trained = module.parameters();
  if (parameters) {
    for (const Parallelized::Part& part : parameters->parallelized().parts()) {
      trained.push_back(part.tensor);
    }
  }
  if (!steps_any(optimizer, trained)) {
    throw UsageError("this optimizer has none of the module's parameters",
                     "give shard an optimizer of the parameters that the step trains");
  }
  if (parameters) return parameters->parallelized().shard(optimizer);
  if (std::ranges::find(waiting, &optimizer) == waiting.end()) waiting.push_back(&optimizer);
}

void TrainingStep::unshard(torch::optim::Optimizer& optimizer) {
  std::erase(impl_->waiting, &optimizer);
  if (impl_->parameters) impl_->parameters->parallelized().unshard(optimizer);
}

void TrainingStep::gather_parameters() {
  if (auto* const predicted = detail::PredictedStep::of_process())
    predicted->refuse("gather_parameters()");
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  pipeline::StageParameters& own = impl.own();
  own.parallelized().gather_parameters();
  // The broadcasts below write to outdated tensors, which must not be refused.
  impl.claim.set_current();
  impl.outdated_at.reset();
  std::vector<NamedTensor> all = detail::named_tensors(impl.module.named_parameters());
  const std::vector<NamedTensor> buffers = detail::named_tensors(impl.module.named_buffers());
  all.insert(all.end(), buffers.begin(), buffers.end());
  for (NamedTensor& item : all) {
    at::Tensor& tensor = item.tensor;
    if (detail::is_deferred(tensor)) {
      tensor.set_data(at::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().requires_grad(false)));
      impl.layouts.distribute({tensor});
    }
    if (impl.stages.size() == 1) continue;
    detail::broadcast_strided(detail::memory_of(tensor), own.first_rank_of(tensor), impl.stages,
                              item.name);
  }
}

Sharing TrainingStep::sharing() const {
  return {.group = impl_->group, .is_part = [impl = impl_.get()](const at::Tensor& stepped) {
            return impl->own().counts(stepped);
          }};
}

Parallelized& TrainingStep::parallelized() { return impl_->own().parallelized(); }
const Parallelized& TrainingStep::parallelized() const { return impl_->own().parallelized(); }

const Plan& TrainingStep::plan() const noexcept { return impl_->plan; }
const comm::Group& TrainingStep::group() const noexcept { return impl_->group; }
const comm::Group& TrainingStep::stage_group() const noexcept { return impl_->stages; }
const comm::Group& TrainingStep::data_group() const noexcept { return impl_->data; }
const graph::Graph& TrainingStep::graph() const { return impl_->last().staged.graph(); }
const std::vector<int>& TrainingStep::boundaries() const {
  return impl_->last().staged.boundaries();
}
const schedule::Schedule& TrainingStep::schedule() const {
  return impl_->last().executors.front()->schedule();
}
const Recomputation& TrainingStep::recomputation() const {
  return impl_->last().staged.recomputation();
}
std::string TrainingStep::to_string() const {
  if (detail::PredictedStep::of_process() != nullptr) return "a step that is predicted";
  return impl_->last().staged.to_string();
}

}  // namespace trireme

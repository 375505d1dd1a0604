// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/pipeline.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/init/deferred.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/module/named_tensors.h>
#include <trireme/parallel/pipeline/evaluation_mode.h>
#include <trireme/parallel/pipeline/execution/on_mesh.h>
#include <trireme/parallel/step/pipeline_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace trireme {
namespace {

using detail::NamedTensor;

[[noreturn]] void refuse(const std::string& what, const char* hint) {
  throw UsageError("a pipeline cannot have " + what, hint);
}

void check_plan(const Plan& plan) {
  pipeline::check_shared_work(plan);
  if (plan.wire != GradientCompression::kNone || plan.gradient_predivide != 1) {
    refuse("gradients that travel in half precision or divided before",
           "set wire to as_is and "
           "gradient_predivide to 1");
  }
  if (plan.sync_batch_norm) {
    refuse("sync_batch_norm", "set it to false: batch norm is over a micro-batch");
  }
}

// What it keeps for backward is in host memory already.
void check_on_processor(const std::vector<NamedTensor>& tensors, const Plan& plan) {
  for (const NamedTensor& item : tensors) {
    if (item.tensor.is_cpu() || item.tensor.is_meta()) continue;
    throw UsageError(join_message("stages of ranks run on the processor, and ", item.name,
                                  " is on ", item.tensor.device().str()),
                     "leave the module on the processor, or use DevicePipeline");
  }
  if (!plan.offload_activations) return;
  refuse("offload_activations for stages on the processor, whose memory is the host's",
         "set it to false; recompute and activation_bytes make stages keep less there");
}

void check_functions(const PipelineFunctions& functions, const comm::Group& group) {
  std::string names;
  for (const auto& [name, forward] : functions) {
    if (!forward) {
      throw UsageError(join_message("forward of a pipeline", name.empty() ? "" : ", function ",
                                    name, ", is empty"),
                       "give it one that can be called");
    }
    if (functions.size() > 1 && name.empty()) {
      throw UsageError("a function of a pipeline has no name", "give each a name of its own");
    }
    if (std::ranges::count(functions, name, &PipelineFunctions::value_type::first) > 1) {
      throw UsageError(join_message("two functions of a pipeline are called '", name, "'"),
                       "give each a name of its own");
    }
    names += name + "\n";
  }
  if (functions.empty()) throw UsageError("a pipeline was given no functions", "give it one");
  detail::check_same_text("functions of the pipeline", names, group);
}

// With both axes named.
Plan on_both_axes(Plan plan, const comm::Group& group) {
  if (plan.mesh.empty()) plan.mesh.push_back({kDataAxis, group.size()});
  for (const char* const name : {kStageAxis, kDataAxis}) {
    if (std::ranges::find(plan.mesh, name, &MeshAxis::name) == plan.mesh.end()) {
      plan.mesh.insert(plan.mesh.begin(), {name, 1});
    }
  }
  return plan;
}

// Of rank 0's default generator, on all ranks.
std::uint64_t shared_seed(const comm::Group& group) {
  at::Tensor seed = at::empty({1}, at::kLong);
  auto* const value = seed.mutable_data_ptr<std::int64_t>();
  *value = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  comm::broadcast(seed, 0, group, "seed of random numbers");
  return static_cast<std::uint64_t>(*value);
}

// Whether an optimizer steps any of these.
bool steps_any(const torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& own) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& stepped) {
      return std::ranges::any_of(own,
                                 [&](const at::Tensor& tensor) { return tensor.is_same(stepped); });
    });
  });
}

// A line for each tensor that is there: its place, type and sizes. For ranks that have it not.
std::string describe(const std::vector<at::Tensor>& tensors) {
  TextWriter text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    text << i << " " << static_cast<int>(tensors[i].scalar_type()) << " " << tensors[i].dim();
    for (const std::int64_t size : tensors[i].sizes()) text << " " << size;
    text << "\n";
  }
  return text.str();
}

// Of each tensor one rank has the values.
void share(std::vector<at::Tensor>& tensors, const comm::Group& group) {
  const std::vector<std::string> texts = comm::all_gather_text(describe(tensors), group);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    TextReader lines(texts[rank]);
    std::size_t place = 0;
    int type = 0;
    std::size_t num_dims = 0;
    while (lines >> place >> type >> num_dims) {
      std::vector<std::int64_t> sizes(num_dims);
      for (std::int64_t& size : sizes) lines >> size;
      at::Tensor& tensor = tensors[place];
      tensor = tensor.defined() ? tensor.contiguous()
                                : at::empty(sizes, static_cast<at::ScalarType>(type));
      comm::broadcast(tensor, static_cast<int>(rank), group, join_message("result ", place));
    }
  }
}

// Of micro-batches, from the rank that has them to all.
at::Tensor share_losses(const pipeline::StepResult& result, const pipeline::Program& program,
                        const comm::Group& group) {
  at::Tensor losses = at::empty({program.schedule.micro_batches}, program.loss_dtype);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    losses.select(0, static_cast<std::int64_t>(i)).copy_(result.losses[i].reshape({}));
  }
  comm::broadcast(losses, program.schedule.rank_of(program.loss_stage), group, "losses");
  return losses;
}

}  // namespace

Pipeline::Pipeline(ModuleRef module, graph::Forward forward, const Plan& plan,
                   const comm::Group& group)
    : Pipeline(module, PipelineFunctions{{"", std::move(forward)}}, plan, group) {}

Pipeline::Pipeline(ModuleRef given, PipelineFunctions functions, const Plan& plan,
                   const comm::Group& group) {
  comm::check_given(group, "Pipeline");
  torch::nn::Module& module = *given;
  validate(plan, group.size());
  check_plan(plan);
  detail::check_same_text("plan", trireme::to_string(plan), group);
  std::vector<NamedTensor> tensors = detail::named_tensors(module.named_parameters());
  detail::check_same_on_all_ranks(tensors, "parameter", group);
  const std::vector<NamedTensor> buffers = detail::named_tensors(module.named_buffers());
  detail::check_same_on_all_ranks(buffers, "buffer", group);
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  pipeline::check_plain(tensors);
  check_on_processor(tensors, plan);
  check_functions(functions, group);
  std::optional<pipeline::ModuleClaim> claim;
  detail::succeed_together(group, "take the module", [&] { claim.emplace(tensors); });
  if (plan.broadcast_parameters) detail::broadcast_all(tensors, group);
  const Plan whole = on_both_axes(plan, group);
  const DeviceMesh mesh(group, whole.mesh);
  impl_ = std::make_unique<Impl>(
      Impl{.module = module,
           .functions = std::move(functions),
           .plan = whole,
           .group = group,
           .stages = mesh.group(mesh.axis(kStageAxis)),
           .data = mesh.group(mesh.axis(kDataAxis)),
           .layouts = {module, pipeline::mesh_of_stages(mesh), whole.layouts},
           .seed = shared_seed(group),
           .claim = std::move(*claim)});
}

Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

PipelineStep Pipeline::step(const std::vector<at::Tensor>& batch,
                            const PipelineStepOptions& options) {
  Impl& impl = *impl_;
  const pipeline::SplitBatch cut =
      pipeline::split_batch(batch, impl.of_step(options.function), impl.module, impl.group);
  Impl::Prepared& prepared = impl.begin_step(cut);
  pipeline::StepResult result = impl.abort_on_error([&] {
    impl.follow_buffers(prepared);
    pipeline::StepResult of_step = prepared.executor.step(
        cut.micro_batches, impl.steps, {.share_loss = true, .report = options.report});
    impl.parameters->finish_step(prepared.staged.program().sum_of_weights());
    return of_step;
  });
  impl.count_step(prepared);
  return {.loss = std::move(result.loss), .report = std::move(result.report)};
}

PipelineEvaluation Pipeline::evaluate(const std::vector<at::Tensor>& batch,
                                      const EvaluateOptions& options) {
  Impl& impl = *impl_;
  if (!impl.parameters) {
    impl.assign_stages(pipeline::split_batch(batch, impl.of_evaluation(options.function),
                                             impl.module, impl.group));
  }
  const pipeline::EvaluationMode mode(impl.module);
  const pipeline::SplitBatch cut =
      pipeline::split_batch(batch, impl.of_evaluation(options.function), impl.module, impl.group);
  Impl::Prepared& prepared = impl.evaluation_for(cut, impl.group);
  prepared.staged.check_results_join();
  PipelineEvaluation evaluation;
  impl.abort_on_error([&] {
    impl.follow_buffers(prepared);
    pipeline::StepResult result = prepared.executor.step(cut.micro_batches, impl.steps,
                                                         {.share_loss = true, .report = false});
    evaluation.loss = std::move(result.loss);
    for (const std::vector<at::Tensor>& parts : result.results) {
      evaluation.results.push_back(parts.empty() ? at::Tensor() : pipeline::joined(parts));
    }
    if (options.share_results) share(evaluation.results, impl.stages);
  });
  ++prepared.num_uses;
  return evaluation;
}

MicroBatchResults Pipeline::step_micro_batches(const MicroBatches& micro_batches,
                                               const MicroBatchStepOptions& options) {
  Impl& impl = *impl_;
  const pipeline::SplitBatch batch =
      pipeline::take_batch(micro_batches, impl.of_step(options.function), impl.module, impl.group);
  Impl::Prepared& prepared = impl.begin_step(batch);
  const pipeline::Program& program = prepared.staged.program();
  MicroBatchResults results;
  impl.abort_on_error([&] {
    impl.follow_buffers(prepared);
    const pipeline::StepResult result =
        prepared.executor.step(micro_batches, options.number < 0 ? impl.steps : options.number,
                               {.share_loss = false, .report = false, .scale = options.scale});
    impl.parameters->finish_step(program.sum_of_weights());
    results.losses = share_losses(result, program, impl.stages);
  });
  impl.count_step(prepared);
  return results;
}

MicroBatchResults Pipeline::evaluate_micro_batches(const MicroBatches& micro_batches,
                                                   const EvaluateOptions& options) {
  Impl& impl = *impl_;
  impl.own();
  const pipeline::EvaluationMode mode(impl.module);
  MicroBatchResults all;
  impl.abort_on_error([&] {
    const pipeline::SplitBatch batch = pipeline::take_batch(
        micro_batches, impl.of_evaluation(options.function), impl.module, impl.stages);
    Impl::Prepared& prepared = impl.evaluation_for(batch, impl.stages);
    pipeline::StepResult result =
        prepared.executor.step(micro_batches, impl.steps, {.share_loss = false, .report = false});
    all.losses = share_losses(result, prepared.staged.program(), impl.stages);
    all.results = std::move(result.results);
    for (std::vector<at::Tensor>& parts : all.results) {
      parts.resize(micro_batches.size());
      if (options.share_results) share(parts, impl.stages);
    }
    ++prepared.num_uses;
  });
  return all;
}

void Pipeline::assign_stages(const MicroBatches& micro_batches) {
  Impl& impl = *impl_;
  if (impl.parameters) return;
  const pipeline::SplitBatch batch =
      pipeline::take_batch(micro_batches, impl.of_evaluation(""), impl.module, impl.group);
  detail::succeed_together(impl.group, "read its batch",
                           [&] { impl.check_same_values(batch.micro_batches); });
  impl.assign_stages(batch);
}

bool Pipeline::has_stages() const noexcept { return impl_->parameters.has_value(); }
std::uint64_t Pipeline::seed() const noexcept { return impl_->seed; }

void Pipeline::set_seed(std::uint64_t seed) {
  if (std::exchange(impl_->seed, seed) == seed) return;
  impl_->latest = nullptr;
  impl_->prepared.clear();
  impl_->evaluated.clear();
  impl_->evaluated_by_pipeline.clear();
}

void Pipeline::prepare(const std::vector<at::Tensor>& batch, const std::string& function) {
  Impl& impl = *impl_;
  impl.prepared_for(pipeline::split_batch(batch,
                                          {.count = impl.plan.micro_batches,
                                           .function = impl.name_of(function),
                                           .check = [&] { impl.check_function(function); }},
                                          impl.module, impl.group));
}

void Pipeline::shard(torch::optim::Optimizer& optimizer) {
  Impl& impl = *impl_;
  if (!cuts_anything(impl.plan) || impl.data.size() == 1) return;
  check_can_shard(optimizer);
  std::vector<at::Tensor> trained = impl.module.parameters();
  if (impl.parameters) {
    for (const Parallelized::Part& part : impl.parameters->parallelized().parts()) {
      trained.push_back(part.tensor);
    }
  }
  if (!steps_any(optimizer, trained)) {
    throw UsageError("this optimizer has none of the module's parameters",
                     "give shard an optimizer of the parameters that the pipeline trains");
  }
  if (impl.parameters) return impl.parameters->parallelized().shard(optimizer);
  if (std::ranges::find(impl.waiting, &optimizer) == impl.waiting.end()) {
    impl.waiting.push_back(&optimizer);
  }
}

void Pipeline::unshard(torch::optim::Optimizer& optimizer) {
  std::erase(impl_->waiting, &optimizer);
  if (impl_->parameters) impl_->parameters->parallelized().unshard(optimizer);
}

void Pipeline::gather_parameters() {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  pipeline::StageParameters& own = impl.own();
  own.parallelized().gather_parameters();
  impl.claim.set_current();  // from here on they are written to
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
    detail::broadcast_strided(detail::memory_of(tensor), own.first_rank_of(tensor), impl.stages,
                              item.name);
  }
}

Sharing Pipeline::sharing() const {
  return {.group = impl_->group, .is_part = [impl = impl_.get()](const at::Tensor& stepped) {
            return impl->own().counts(stepped);
          }};
}

Parallelized& Pipeline::parallelized() { return impl_->own().parallelized(); }
const Parallelized& Pipeline::parallelized() const { return impl_->own().parallelized(); }

const Plan& Pipeline::plan() const noexcept { return impl_->plan; }
const comm::Group& Pipeline::group() const noexcept { return impl_->group; }
const comm::Group& Pipeline::stage_group() const noexcept { return impl_->stages; }
const comm::Group& Pipeline::data_group() const noexcept { return impl_->data; }
const graph::Graph& Pipeline::graph() const { return impl_->last().staged.graph(); }
const std::vector<int>& Pipeline::boundaries() const { return impl_->last().staged.boundaries(); }
const schedule::Schedule& Pipeline::schedule() const { return impl_->last().executor.schedule(); }
const Recomputation& Pipeline::recomputation() const {
  return impl_->last().staged.recomputation();
}
std::string Pipeline::to_string() const { return impl_->last().staged.to_string(); }

}  // namespace trireme

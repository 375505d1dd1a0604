// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/model.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/check_replicas.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_config.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme {

using detail::valid_rows;

namespace {

const at::Tensor& column(const data::Batch& batch, const std::string& name, std::size_t place) {
  if (!name.empty()) return batch[name];
  if (place >= batch.columns.size()) {
    throw UsageError(
        join_message("a model needs a column for the input and one for the target, the batch has ",
                     batch.columns.size()),
        "give the data set two columns, or make the model of a function of the whole batch");
  }
  return batch.columns[place];
}

// Returns the options with their defaults, and with the plan whose step is predicted, if one is.
ModelOptions completed(ModelOptions options) {
  options.group = group_or_self(options.group, "Model");
  comm::succeed_together("take the plan", options.group,
                         [&] { options.plan = requested_plan(options.plan); });
  if (const auto* const predicted = detail::PredictedStep::of_process()) {
    options.plan = predicted->searches() ? automatic_of(options.plan)
                                         : predicted->plan_for(options.plan, options.group.size());
  }
  return options;
}

}  // namespace

at::Tensor detail::valid_rows(const at::Tensor& tensor, const data::Batch& batch) {
  return batch.padded_rows == 0 ? tensor : tensor.narrow(0, 0, batch.valid_rows());
}

Model::Impl::Impl(std::shared_ptr<torch::nn::Module> the_module,
                  torch::optim::Optimizer& the_optimizer, ModelOptions the_options)
    : module(std::move(the_module)),
      optimizer(the_optimizer),
      plan_of_program(the_options.plan),
      options(completed(std::move(the_options))),
      runner(Runner::make(*this)),
      agreement(runner->carrier(), options.group) {
  runner->shard(optimizer);
  // A prediction of an automatic plan is given the plan: its rows are divided as in a run.
  const bool is_divided = plan_of_program.mode == PlanMode::kAutomatic && !runner->is_unplanned();
  if (is_divided && detail::PredictedStep::of_process() != nullptr) {
    found_plan = {.parts = parts_of_step(options.plan)};
  }
  if (options.autocast == at::kHalf) loss_scale.emplace(options.loss_scale);
  if (detail::PredictedStep::of_process() == nullptr) {
    recovery = detail::Recovery::of_process(options.group);
    steps_between_checks = options.check_replicas.value_or(steps_between_replica_checks());
    comm::check_same_text("numbers of steps between two comparisons of replicas (check_replicas)",
                          std::to_string(steps_between_checks), options.group);
  }
}

// Gives the optimizer whole parameters again, because the caller keeps it. During an exception this
// is skipped: the other ranks may not take part in the collective.
Model::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    runner->unshard(optimizer);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group is dead: reported
  }
}

// Checks the options before the module is changed.
void Model::Impl::check_options() const {
  if (options.clip_norm && !(*options.clip_norm > 0)) {
    throw UsageError(
        join_message("a model was told to clip gradients to a norm of ", *options.clip_norm),
        "give a norm above 0, or none");
  }
  if (options.autocast && *options.autocast != at::kBFloat16 && *options.autocast != at::kHalf) {
    throw UsageError(join_message("a model was told to compute in ", *options.autocast),
                     "take at::kBFloat16 or at::kHalf, or none for fp32");
  }
  if (options.check_replicas.value_or(0) < 0) {
    throw UsageError(join_message("a model was told to compare replicas every ",
                                  *options.check_replicas, " steps"),
                     "give a number above 0, or 0 for never");
  }
  const LossScale checked_scale(options.loss_scale);
  if (cuts_anything(options.plan) && options.group.size() > 1) check_can_shard(optimizer);
}

// Looks up where the parameters are. Called once per call of the model, because it lists all
// parameters.
void Model::Impl::find_device() {
  const auto parameters = module->parameters();
  device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

std::unique_ptr<detail::DeterministicAlgorithms> Model::Impl::determinism() const {
  return options.deterministic ? std::make_unique<detail::DeterministicAlgorithms>() : nullptr;
}

at::Tensor Model::Impl::input_of(const data::Batch& batch) const {
  return column(batch, options.input_column, 0).to(device, /*non_blocking=*/true);
}

// The layers of a module may lie on several devices, and its output on another one than its input.
at::Tensor Model::Impl::target_for(const at::Tensor& output, const data::Batch& batch) const {
  return column(batch, options.target_column, 1).to(output.device(), /*non_blocking=*/true);
}

at::Tensor Model::Impl::output_of(const at::Tensor& input) const {
  const at::Tensor output = in_precision([&] { return forward(input); });
  const bool is_narrow = options.autocast && output.scalar_type() == *options.autocast;
  return is_narrow ? output.to(at::kFloat) : output;
}

// Padding rows go through forward, whose shapes stay the same, but not into the loss. A batch of
// padding alone contributes nothing to the gradient.
at::Tensor Model::Impl::loss_of(const data::Batch& batch) const {
  const bool is_padding = batch.padded_rows > 0 && batch.valid_rows() == 0;
  const auto value_of = [&] {
    if (!forward) {
      const bool is_whole = batch.padded_rows == 0 || is_padding;
      return in_precision([&] { return batch_loss(is_whole ? batch : batch.without_padding()); });
    }
    const at::Tensor output = output_of(input_of(batch));
    const at::Tensor target = target_for(output, batch);
    if (is_padding) return loss(output, target);
    return loss(valid_rows(output, batch), valid_rows(target, batch));
  };
  const at::Tensor value = value_of();
  if (value.numel() != 1) {
    throw UsageError(join_message("a loss must be one number, got a tensor ", value.sizes()),
                     "take the mean over the samples");
  }
  return full(is_padding ? value.mul(0) : value);
}

std::vector<at::Tensor> Model::Impl::results_of(const std::vector<at::Tensor>& inputs) const {
  if (!forward) {
    return {in_precision(
        [&] { return batch_loss({.names = columns, .columns = inputs, .padded_rows = 0}); })};
  }
  const at::Tensor output = output_of(inputs.front());
  if (inputs.size() == 1) return {output.to(at::kFloat).sum(), output};
  return {loss(output, inputs[1]), output};
}

std::vector<at::Tensor> Model::Impl::tensors_of(const data::Batch& batch) {
  if (batch.padded_rows > 0) {
    throw UsageError(join_message("a batch of ", batch.rows(), " rows has ", batch.padded_rows,
                                  " that fill it up, and stages run a record of whole batches"),
                     "let the last batch be shorter, or leave it out: LastBatch::kKeep or kDrop");
  }
  if (forward) {
    const at::Tensor input = input_of(batch);
    return {input, target_for(input, batch)};
  }
  columns = batch.names;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& column : batch.columns) tensors.push_back(column.to(device));
  return tensors;
}

Model::Model(std::shared_ptr<torch::nn::Module> module, Forward forward, Loss loss,
             BatchLoss batch_loss, torch::optim::Optimizer& optimizer, ModelOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), optimizer, std::move(options))) {
  impl_->forward = std::move(forward);
  impl_->loss = std::move(loss);
  impl_->batch_loss = std::move(batch_loss);
  comm::succeed_together("take the metrics", impl_->options.group, [&] {
    if (impl_->forward || impl_->options.metrics.empty()) return;
    throw UsageError(
        "metrics look at outputs, which a model made of a function of the batch has not",
        "make the model of the network and a loss, or count in the function");
  });
}

Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

void Model::gather_parameters() { impl_->runner->gather_parameters(); }

void Model::request_stop() noexcept { impl_->wants_to_stop = true; }
void Model::request_save() noexcept { impl_->wants_to_save = true; }

void Model::measure_pipeline() noexcept { impl_->wants_timeline = true; }
bool Model::is_leaving() const { return impl_->is_leaving; }
bool Model::is_stopped() const { return impl_->is_stopped; }
torch::nn::Module& Model::module() const { return *impl_->module; }
torch::optim::Optimizer& Model::optimizer() const { return impl_->optimizer; }
const ModelOptions& Model::options() const { return impl_->options; }
at::Device Model::device() const { return impl_->device; }
Sharing Model::sharing() const { return impl_->runner->sharing(); }

Progress Model::progress() const {
  const detail::Position& position = impl_->position;
  return {.epoch = position.epoch, .step = position.step, .global_step = position.global_step};
}

Evaluation Model::evaluate(const data::DataLoader& data) {
  return impl_->evaluate(impl_->part_of(data, data::Remainder::kUneven),
                         std::numeric_limits<std::int64_t>::max());
}

std::string Model::Impl::name_in(std::string_view what, std::string_view doing) const {
  return join_message("rank ", options.group.rank(), ", ", doing, " in ", what);
}

MetricAccumulator Model::Impl::counted_once(const MetricAccumulator& own) const {
  const bool counts = std::ranges::all_of(
      runner->peers(), [](const comm::Group& group) { return group.rank() == 0; });
  return counts ? own : MetricAccumulator{.failures = own.failures};
}

Evaluation Model::Impl::sum_evaluation(MetricAccumulator own, const detail::Failures& failures,
                                       const comm::Group& of_metrics) {
  for (Metric& metric : options.metrics) metric.all_reduce(of_metrics);
  own.failures = failures.has_failed() ? 1 : 0;
  const MetricAccumulator all = all_reduce(own, options.group);
  if (all.failures > 0) failures.throw_on_all("the evaluation");
  return all.evaluation();
}

std::unique_ptr<Model::Runner> Model::Runner::make(Impl& model) {
  comm::succeed_together("take the options of the model", model.options.group,
                         [&] { model.check_options(); });
  const bool is_automatic = model.options.plan.mode == PlanMode::kAutomatic;
  comm::check_same_text("mode of the plan", is_automatic ? "auto" : "manual", model.options.group);
  if (is_automatic) return make_unplanned(model);
  return needs_training_step(model.options.plan) ? make_staged(model) : make_whole(model);
}

void Model::Impl::check_can_predict() const {
  if (forward) return;
  throw UsageError("a model made of a function of the batch cannot predict",
                   "call the network itself, or make the model of the network and a loss");
}

Evaluation Model::Impl::evaluate(const data::DataLoader& data, std::int64_t num_batches) {
  const auto deterministic = determinism();
  find_device();
  for (Metric& metric : options.metrics) metric.clear();
  return runner->evaluate(data, num_batches);
}

at::Tensor Model::predict(const at::Tensor& input) {
  Impl& impl = *impl_;
  impl.check_can_predict();
  impl.load_pending();
  const auto deterministic = impl.determinism();
  impl.find_device();
  return impl.runner->predict(input.to(impl.device));
}

at::Tensor Model::predict(const data::DataLoader& data) {
  Impl& impl = *impl_;
  impl.check_can_predict();
  impl.load_pending();
  const auto deterministic = impl.determinism();
  impl.find_device();
  return impl.runner->predict(data);
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/model.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/detail/model_impl.h>

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

void broadcast_buffers(const torch::nn::Module& module, const comm::Group& group) {
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.value().defined()) continue;
    detail::broadcast_strided(detail::memory_of(buffer.value()), 0, group, buffer.key());
  }
}

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

bool have_all_ranks_the_same(std::int64_t number, const comm::Group& group) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  comm::all_gather(all, at::tensor({number}, at::kLong), group);
  return all.eq(number).all().item<bool>();
}

ModelOptions with_group(ModelOptions options) {
  options.group = group_or_self(options.group, "Model");
  return options;
}

// Puts a module into evaluation mode, without gradients, and back.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modes_(module) { module.eval(); }

 private:
  detail::ModeGuard modes_;
  torch::NoGradGuard no_gradients_;
};

}  // namespace

at::Tensor detail::valid_rows(const at::Tensor& tensor, const data::Batch& batch) {
  return batch.padded_rows == 0 ? tensor : tensor.narrow(0, 0, batch.valid_rows());
}

detail::ModeGuard::ModeGuard(torch::nn::Module& module) {
  for (const auto& part : module.modules()) modes_.emplace_back(part, part->is_training());
}

detail::ModeGuard::~ModeGuard() {
  // Deepest parts last, since train() goes down to the children.
  for (const auto& [part, mode] : modes_) part->train(mode);
}

Model::Impl::Impl(std::shared_ptr<torch::nn::Module> the_module,
                  torch::optim::Optimizer& the_optimizer, ModelOptions the_options)
    : module(std::move(the_module)),
      optimizer(the_optimizer),
      options(with_group(std::move(the_options))),
      in_whole(make_whole()),
      in_stages(make_stages()),
      agreement(in_whole ? &*in_whole : nullptr, options.group) {
  in_whole ? in_whole->shard(optimizer) : in_stages->shard(optimizer);
  if (options.autocast == at::kHalf) loss_scale.emplace(options.loss_scale);
}

// The optimizer stays, and has whole parameters again; but a rank that an exception ends must not
// wait for the others.
Model::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    in_whole ? in_whole->unshard(optimizer) : in_stages->unshard(optimizer);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group is dead: reported
  }
}

// What cannot be is refused before the module is changed.
Plan Model::Impl::checked(const Plan& plan) const {
  if (options.clip_norm && !(*options.clip_norm > 0)) {
    throw UsageError(
        join_message("a model was told to clip gradients to a norm of ", *options.clip_norm),
        "give a norm above 0, or none");
  }
  if (options.autocast && *options.autocast != at::kBFloat16 && *options.autocast != at::kHalf) {
    throw UsageError(join_message("a model was told to compute in ", *options.autocast),
                     "take at::kBFloat16 or at::kHalf, or none for fp32");
  }
  const LossScale checked_scale(options.loss_scale);
  if (cuts_anything(plan) && options.group.size() > 1) check_can_shard(optimizer);
  return plan;
}

// Looks up where the parameters are now; once per call, for it makes a list of all of them.
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

at::Tensor Model::Impl::target_of(const data::Batch& batch) const {
  return column(batch, options.target_column, 1).to(device, /*non_blocking=*/true);
}

at::Tensor Model::Impl::output_of(const at::Tensor& input) const {
  const at::Tensor output = in_precision([&] { return forward(input); });
  const bool is_narrow = options.autocast && output.scalar_type() == *options.autocast;
  return is_narrow ? output.to(at::kFloat) : output;
}

// Rows that pad a batch go through a network's forward, whose shapes stay the same, and not into
// the loss. Where there are no others the batch has no part in the gradient.
at::Tensor Model::Impl::loss_of(const data::Batch& batch) const {
  const bool is_padding = batch.padded_rows > 0 && batch.valid_rows() == 0;
  const auto value_of = [&] {
    if (!forward) {
      const bool is_whole = batch.padded_rows == 0 || is_padding;
      return in_precision([&] { return batch_loss(is_whole ? batch : batch.without_padding()); });
    }
    const at::Tensor output = output_of(input_of(batch));
    if (is_padding) return loss(output, target_of(batch));
    return loss(valid_rows(output, batch), valid_rows(target_of(batch), batch));
  };
  const at::Tensor value = value_of();
  if (value.numel() != 1) {
    throw UsageError(join_message("a loss must be one number, got a tensor ", value.sizes()),
                     "take the mean over the samples");
  }
  return full(is_padding ? value.mul(0) : value);
}

Model::Model(std::shared_ptr<torch::nn::Module> module, Forward forward, Loss loss,
             BatchLoss batch_loss, torch::optim::Optimizer& optimizer, ModelOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), optimizer, std::move(options))) {
  impl_->forward = std::move(forward);
  impl_->loss = std::move(loss);
  impl_->batch_loss = std::move(batch_loss);
  if (!impl_->forward && !impl_->options.metrics.empty()) {
    throw UsageError(
        "metrics look at outputs, which a model made of a function of the batch has not",
        "make the model of the network and a loss, or count in the function");
  }
}

Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

void Model::gather_parameters() {
  Impl& impl = *impl_;
  if (impl.in_whole) return impl.in_whole->gather_parameters();
  impl.parallelized();  // known with the first batch
  impl.load_later();
  impl.in_stages->gather_parameters();
}

void Model::request_stop() noexcept { impl_->wants_to_stop = true; }
void Model::request_save() noexcept { impl_->wants_to_save = true; }
bool Model::is_stopped() const { return impl_->is_stopped; }
torch::nn::Module& Model::module() const { return *impl_->module; }
torch::optim::Optimizer& Model::optimizer() const { return impl_->optimizer; }
const ModelOptions& Model::options() const { return impl_->options; }
at::Device Model::device() const { return impl_->device; }
Sharing Model::sharing() const { return impl_->sharing(); }

Progress Model::progress() const {
  const detail::Position& position = impl_->position;
  return {.epoch = position.epoch, .step = position.step, .global_step = position.global_step};
}

Evaluation Model::evaluate(const data::DataLoader& data) {
  return impl_->evaluate(impl_->part_of(data, data::Remainder::kUneven),
                         std::numeric_limits<std::int64_t>::max());
}

// Counts what this rank sees of an evaluation.
void Model::Impl::count(const data::DataLoader& data, std::int64_t num_batches,
                        MetricAccumulator& accumulator, std::string_view& doing) {
  for (Metric& metric : options.metrics) metric.clear();
  const auto batches = data.open(0);
  for (std::int64_t number = 0; number < num_batches; ++number) {
    doing = "reading data";
    const auto batch = batches->next();
    if (!batch) break;
    doing = "computing forward";
    if (!forward) {
      const at::Tensor value = loss_of(*batch);
      if (batch->valid_rows() > 0) accumulator.add_loss(value.item<double>(), batch->valid_rows());
      continue;
    }
    const at::Tensor all_outputs = output_of(input_of(*batch));
    if (batch->valid_rows() == 0) continue;
    const at::Tensor output = valid_rows(all_outputs, *batch);
    const at::Tensor target = valid_rows(target_of(*batch), *batch);
    accumulator.add_loss(full(loss(output, target)).item<double>(), batch->valid_rows());
    doing = "counting";
    const at::Tensor predictions = full(output);
    accumulator.add_predictions(predictions, target);
    for (Metric& metric : options.metrics) metric.add(predictions, target);
  }
}

MetricAccumulator Model::Impl::sum_over_ranks(const MetricAccumulator& own) const {
  const bool counts =
      std::ranges::all_of(peers(), [](const comm::Group& group) { return group.rank() == 0; });
  return all_reduce(counts ? own : MetricAccumulator{.failures = own.failures}, options.group);
}

Evaluation Model::Impl::evaluate(const data::DataLoader& data, std::int64_t num_batches) {
  const auto deterministic = determinism();
  find_device();
  if (in_stages) return evaluate_in_stages(data, num_batches);
  const EvaluationMode mode(*module);
  broadcast_buffers(*module, in_whole->data_group());
  detail::Failures failures(options.group);
  std::string_view doing = "reading data";
  const auto who = [&] {
    return join_message("rank ", options.group.rank(), ", ", doing, " in an evaluation");
  };
  // Where forward takes all ranks, one whose data ends before that of others cannot be waited for.
  std::int64_t own_batches = -1;
  const auto count_batches = [&] { own_batches = std::min(num_batches, data.batches()); };
  const bool is_cut = cuts_parameters(options.plan);
  if (is_cut && forward_is_shared()) {
    end_all_on_failure(count_batches, who);
  } else if (is_cut) {
    failures.attempt(count_batches, who);
  }
  const bool is_together = is_cut && have_all_ranks_the_same(own_batches, options.group);
  if (!is_together) in_whole->gather_parameters();
  MetricAccumulator accumulator;
  const auto count_all = [&] { count(data, num_batches, accumulator, doing); };
  if (!failures.has_failed()) {
    is_together || forward_is_shared() ? end_all_on_failure(count_all, who)
                                       : static_cast<void>(failures.attempt(count_all, who));
  }
  for (Metric& metric : options.metrics) metric.all_reduce(in_whole->data_group());
  accumulator.failures = failures.has_failed() ? 1 : 0;
  const MetricAccumulator all = sum_over_ranks(accumulator);
  if (all.failures > 0) failures.throw_on_all("the evaluation");
  return all.evaluation();
}

void Model::Impl::check_can_predict() const {
  if (forward) return;
  throw UsageError("a model made of a function of the batch cannot predict",
                   "call the network itself, or make the model of the network and a loss");
}

at::Tensor Model::predict(const at::Tensor& input) {
  Impl& impl = *impl_;
  impl.check_can_predict();
  const auto deterministic = impl.determinism();
  impl.find_device();
  if (impl.in_stages) return impl.predict_in_stages(std::vector{input.to(impl.device)}).front();
  const EvaluationMode mode(*impl.module);
  return full(impl.output_of(input.to(impl.device)));
}

at::Tensor Model::predict(const data::DataLoader& data) {
  if (impl_->in_stages) {
    impl_->check_can_predict();
    const auto deterministic = impl_->determinism();
    impl_->find_device();
    return impl_->predict_in_stages(data);
  }
  std::vector<at::Tensor> outputs;
  const auto batches = data.open(0);
  while (const auto batch = batches->next()) {
    const at::Tensor output = predict(column(*batch, impl_->options.input_column, 0));
    outputs.push_back(valid_rows(output, *batch));
  }
  return at::cat(outputs);
}

}  // namespace trireme

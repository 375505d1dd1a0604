// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/model.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/pipeline.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/train/step_agreement.h>

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <optional>
#include <vector>

namespace trireme {
namespace {

using Seconds = std::chrono::duration<double>;

// Where training stands, as a checkpoint records it: `step` of the `steps_in_epoch` steps of
// `epoch` are done.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t steps_in_epoch = 0;
  std::int64_t global_step = 0;

  bool is_between_epochs() const { return step == steps_in_epoch; }
  std::int64_t next_epoch() const { return is_between_epochs() ? epoch + 1 : epoch; }
};

std::int64_t entry(const checkpoint::State& state, const std::string& name) {
  const auto found = state.entries.find(name);
  std::int64_t value = 0;
  if (found != state.entries.end()) {
    const std::string& text = found->second;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc{} && end == text.data() + text.size()) return value;
  }
  throw CheckpointError(
      join_message("the checkpoint has no number in its entry ", name),
      "only Model::save makes checkpoints to resume; load others with checkpoint::load");
}

Position load_position(const std::filesystem::path& path, torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer) {
  const checkpoint::State state = checkpoint::load(path, module, &optimizer);
  return {.epoch = state.epoch,
          .step = state.step,
          .steps_in_epoch = entry(state, "steps_in_epoch"),
          .global_step = entry(state, "global_step")};
}

// Puts a module into evaluation mode, and every part of it back into its own mode at the end.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    for (const auto& part : module.modules()) modes_.emplace_back(part, part->is_training());
    module.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    // Deepest parts last, since train() goes down to the children.
    for (const auto& [part, mode] : modes_) part->train(mode);
  }

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  torch::NoGradGuard no_gradients_;
};

void broadcast_buffers(const torch::nn::Module& module, const comm::Group& group) {
  std::vector<comm::Work> works;
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined()) works.push_back(comm::broadcast_async(buffer, 0, group));
  }
  for (comm::Work& work : works) work.wait();
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

// By rank.
at::Tensor all_counts(std::int64_t own, const comm::Group& group) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  comm::all_gather(all, at::tensor({own}, at::kLong), group);
  return all;
}

bool any_of_ranks(bool own, const comm::Group& group) {
  return all_counts(own ? 1 : 0, group).any().item<bool>();
}

// Ranks that disagree would wait for each other at the end of the epoch.
void check_same_steps(std::int64_t steps, const comm::Group& group) {
  const at::Tensor all = all_counts(steps, group);
  const std::int64_t* counts = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank) {
    if (counts[rank] == counts[0]) continue;
    throw UsageError(join_message("ranks would take different numbers of steps in an epoch: ",
                                  counts[0], " on rank 0, ", counts[rank], " on rank ", rank),
                     "shard the data set so that all parts are equal: remainder kWrap or kDrop");
  }
}

}  // namespace

struct Model::Impl {
  Impl(std::shared_ptr<torch::nn::Module> the_module, torch::optim::Optimizer& the_optimizer,
       ModelOptions the_options)
      : module(std::move(the_module)),
        optimizer(the_optimizer),
        options(std::move(the_options)),
        parallelized(parallelize(*module, checked(options.plan), options.group)),
        agreement(parallelized) {
    parallelized.shard(optimizer);
  }
  // The optimizer stays, and has whole parameters again; but a rank that an exception ends must not
  // wait for the others.
  ~Impl() {
    if (std::uncaught_exceptions() > 0) return;
    try {
      parallelized.unshard(optimizer);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group is dead: reported
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // What cannot be is refused before the module is changed.
  Plan checked(const Plan& plan) const {
    if (options.clip_norm && !(*options.clip_norm > 0)) {
      throw UsageError(
          join_message("a model was told to clip gradients to a norm of ", *options.clip_norm),
          "give a norm above 0, or none");
    }
    if (options.autocast && *options.autocast != at::kBFloat16) {
      throw UsageError(join_message("a model was told to compute in ", *options.autocast),
                       "take at::kBFloat16; for fp16 write the loop by hand, with a LossScale");
    }
    if (cuts_anything(plan) && options.group.size() > 1) check_can_shard(optimizer);
    return plan;
  }

  std::shared_ptr<torch::nn::Module> module;
  torch::optim::Optimizer& optimizer;
  ModelOptions options;
  Forward forward;  // empty for a model of a function
  Loss loss;
  BatchLoss batch_loss;
  Parallelized parallelized;
  detail::StepAgreement agreement;
  at::Device device{at::kCPU};
  Position position;
  std::int64_t requested_epochs = 0;
  std::atomic<bool> wants_to_stop = false;  // this rank
  bool is_stopped = false;                  // all ranks

  // Looks up where the parameters are now; once per call, for it makes a list of all of them.
  void find_device() {
    const auto parameters = module->parameters();
    device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
  }

  at::Tensor input_of(const data::Batch& batch) const {
    return column(batch, options.input_column, 0).to(device, /*non_blocking=*/true);
  }
  at::Tensor target_of(const data::Batch& batch) const {
    return column(batch, options.target_column, 1).to(device, /*non_blocking=*/true);
  }

  template <typename Compute>
  at::Tensor in_precision(const Compute& compute) const {
    if (!options.autocast) return compute();
    const Autocast autocast(device.type(), *options.autocast);
    return compute();
  }
  at::Tensor output_of(const at::Tensor& input) const {
    const at::Tensor output = in_precision([&] { return forward(input); });
    return options.autocast && output.scalar_type() == *options.autocast ? output.to(at::kFloat)
                                                                         : output;
  }
  at::Tensor loss_of(const data::Batch& batch) const;
  std::int64_t steps_in_epoch(const data::Pipeline& data) const;
  void train_epoch(const RunContext& run, const data::Pipeline& data, const Callbacks& callbacks,
                   const data::Pipeline* evaluate_with);
  StepEndContext train_step(data::BatchStream& batches, const StepContext& step);
};

at::Tensor Model::Impl::loss_of(const data::Batch& batch) const {
  const at::Tensor value = forward ? loss(output_of(input_of(batch)), target_of(batch))
                                   : in_precision([&] { return batch_loss(batch); });
  if (value.numel() != 1) {
    throw UsageError(join_message("a loss must be one number, got a tensor ", value.sizes()),
                     "take the mean over the samples");
  }
  return value;
}

std::int64_t Model::Impl::steps_in_epoch(const data::Pipeline& data) const {
  const std::int64_t batches = data.batches();
  const std::int64_t steps = batches / options.plan.micro_batches;
  check_same_steps(steps, options.group);
  if (steps == 0) {
    throw UsageError(join_message("an epoch has ", batches, " batches, a step takes ",
                                  options.plan.micro_batches, " (plan.micro_batches)"),
                     "use more data, smaller batches or fewer micro-batches");
  }
  return steps;
}

// One optimizer step over the next micro-batches.
StepEndContext Model::Impl::train_step(data::BatchStream& batches, const StepContext& step) {
  const std::int64_t micro_batches = options.plan.micro_batches;
  StepEndContext result{step};
  optimizer.zero_grad();
  at::Tensor sum;
  for (std::int64_t i = 1; i <= micro_batches; ++i) {
    const auto batch = batches.next();
    TRIREME_CHECK(batch.has_value());
    result.samples += batch->rows();
    const at::Tensor value = loss_of(*batch);
    sum = i == 1 ? value.detach() : sum + value.detach();
    if (i == micro_batches) agreement.start(i == 1 ? sum : sum / micro_batches, wants_to_stop);
    value.backward();
  }
  const auto outcome = agreement.finish(step.epoch, step.step);
  result.loss = outcome.loss;
  is_stopped = outcome.is_last;
  if (options.clip_norm) {
    result.gradient_norm =
        clip_by_global_norm(optimizer, *options.clip_norm, parallelized.sharing());
  }
  optimizer.step();
  return result;
}

void Model::Impl::train_epoch(const RunContext& run, const data::Pipeline& data,
                              const Callbacks& callbacks, const data::Pipeline* evaluate_with) {
  if (position.is_between_epochs()) {
    position = {.epoch = position.next_epoch(),
                .steps_in_epoch = run.steps_in_epoch,
                .global_step = position.global_step};
  } else if (position.steps_in_epoch != run.steps_in_epoch) {
    throw UsageError(
        join_message("the checkpoint was made after step ", position.step, " of ",
                     position.steps_in_epoch, " in epoch ", position.epoch,
                     ", but here an epoch has ", run.steps_in_epoch, " steps"),
        "resume with the same data, batch size and number of ranks, or from the end of an epoch");
  }
  const EpochContext epoch{.run = run, .epoch = position.epoch, .steps_done = position.step};
  const auto batches = data.open(position.epoch - 1, position.step * options.plan.micro_batches);
  for (Callback& callback : callbacks) callback.on_epoch_begin(epoch);
  const auto started = std::chrono::steady_clock::now();
  Tally tally;
  while (!position.is_between_epochs()) {
    const StepContext step{.run = run,
                           .epoch = epoch.epoch,
                           .step = position.step + 1,
                           .global_step = position.global_step + 1};
    for (Callback& callback : callbacks) callback.on_step_begin(step);
    const StepEndContext end = train_step(*batches, step);
    ++position.step;
    ++position.global_step;
    tally.add_loss(static_cast<double>(end.loss), end.samples);
    for (Callback& callback : callbacks) callback.on_step_end(end);
    if (is_stopped && !position.is_between_epochs()) return;
  }
  const Seconds seconds = std::chrono::steady_clock::now() - started;
  const Tally all = all_reduce(tally, options.group);
  EpochEndContext end{epoch};
  end.global_step = position.global_step;
  end.mean_loss = all.evaluation().loss;
  end.samples = all.samples;
  end.seconds = seconds.count();
  if (evaluate_with != nullptr) end.evaluation = run.model.evaluate(*evaluate_with);
  for (Callback& callback : callbacks) callback.on_epoch_end(end);
  is_stopped = is_stopped || any_of_ranks(wants_to_stop, options.group);
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

void Model::train(std::int64_t epochs, const data::Pipeline& data, const Callbacks& callbacks,
                  const data::Pipeline* evaluate_with) {
  Impl& impl = *impl_;
  if (epochs < 0)
    throw UsageError(join_message("cannot train for ", epochs, " epochs"), "give 0 or more");
  const std::int64_t steps = impl.steps_in_epoch(data);
  impl.requested_epochs += epochs;
  impl.wants_to_stop = impl.is_stopped = false;
  impl.find_device();
  impl.module->train();
  const RunContext run{.model = *this,
                       .rank = impl.options.group.rank(),
                       .world_size = impl.options.group.size(),
                       .last_epoch = impl.requested_epochs,
                       .steps_in_epoch = steps};
  try {
    for (Callback& callback : callbacks) callback.on_run_begin(run);
    while (impl.position.next_epoch() <= impl.requested_epochs && !impl.is_stopped) {
      impl.train_epoch(run, data, callbacks, evaluate_with);
    }
    if (impl.is_stopped) impl.requested_epochs = impl.position.next_epoch() - 1;
    // Whoever looks at the module next may do so alone, but where it may not fit whole.
    if (!cuts_parameters(impl.options.plan)) impl.parallelized.fetch();
    for (Callback& callback : callbacks) callback.on_run_end(run);
  } catch (...) {
    // Another train() may follow, after a resume().
    impl.requested_epochs -= epochs;
    impl.parallelized.abandon_step();
    for (Callback& callback : callbacks) callback.on_failure(run);
    throw;
  }
}

void Model::request_stop() noexcept { impl_->wants_to_stop = true; }

bool Model::is_stopped() const { return impl_->is_stopped; }

Evaluation Model::evaluate(const data::Pipeline& data) {
  Impl& impl = *impl_;
  impl.find_device();
  const EvaluationMode mode(*impl.module);
  broadcast_buffers(*impl.module, impl.options.group);
  // Where forward takes all ranks, one whose data ends before that of others cannot be waited for.
  const at::Tensor counts = all_counts(data.batches(), impl.options.group);
  if (!cuts_parameters(impl.options.plan) || !counts.eq(counts[0]).all().item<bool>()) {
    impl.parallelized.fetch();
  }
  Tally tally;
  for (Metric& metric : impl.options.metrics) metric.clear();
  const auto batches = data.open(0);
  while (const auto batch = batches->next()) {
    if (!impl.forward) {
      tally.add_loss(impl.loss_of(*batch).item<double>(), batch->rows());
      continue;
    }
    const at::Tensor output = impl.output_of(impl.input_of(*batch));
    const at::Tensor target = impl.target_of(*batch);
    tally.add_loss(impl.loss(output, target).item<double>(), batch->rows());
    tally.add_predictions(output, target);
    for (Metric& metric : impl.options.metrics) metric.add(output, target);
  }
  for (Metric& metric : impl.options.metrics) metric.all_reduce(impl.options.group);
  return all_reduce(tally, impl.options.group).evaluation();
}

at::Tensor Model::predict(const at::Tensor& input) {
  Impl& impl = *impl_;
  if (!impl.forward) {
    throw UsageError("a model made of a function of the batch cannot predict",
                     "call the network itself, or make the model of the network and a loss");
  }
  impl.find_device();
  const EvaluationMode mode(*impl.module);
  return impl.output_of(input.to(impl.device));
}

at::Tensor Model::predict(const data::Pipeline& data) {
  std::vector<at::Tensor> outputs;
  const auto batches = data.open(0);
  while (const auto batch = batches->next())
    outputs.push_back(predict(column(*batch, impl_->options.input_column, 0)));
  return at::cat(outputs);
}

// While it lives the optimizer has all of its parameters and state, as files of checkpoints do, and
// parameters are whole.
struct Model::Whole {
  explicit Whole(Impl& the_impl) : impl(the_impl) {
    impl.parallelized.unshard(impl.optimizer);
    impl.parallelized.fetch();
  }
  ~Whole() { impl.parallelized.shard(impl.optimizer); }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

  Impl& impl;
};

void Model::save(const checkpoint::SaveOptions& options) const {
  Impl& impl = *impl_;
  const Whole whole(impl);
  if (impl.options.group.rank() != 0) return;
  const Position& position = impl.position;
  checkpoint::save(options, *impl.module, &impl.optimizer,
                   {.epoch = position.epoch,
                    .step = position.step,
                    .entries = {{"global_step", std::to_string(position.global_step)},
                                {"steps_in_epoch", std::to_string(position.steps_in_epoch)}}});
}

void Model::resume(const std::filesystem::path& path) {
  Impl& impl = *impl_;
  Position position;
  std::string found;
  bool is_loaded = false;
  const Whole whole(impl);
  try {
    position = load_position(path, *impl.module, impl.optimizer);
    found = join_message("epoch ", position.epoch, ", step ", position.step);
    is_loaded = true;
  } catch (const Error& error) {
    found = error.what();
  }
  // A rank that cannot load tells the others, which would wait for it in the first step.
  const comm::Group& group = impl.options.group;
  const auto loaded = comm::all_gather_text(is_loaded ? "yes" : "no", group);
  const auto all = comm::all_gather_text(found, group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (loaded[rank] == "yes") continue;
    if (group.size() == 1) throw CheckpointError(all[rank], "");
    throw CheckpointError(join_message("rank ", rank, " cannot resume: ", all[rank]), "");
  }
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const auto& text) { return text != all.front(); });
  if (other != all.end()) {
    throw CheckpointError(
        join_message("ranks found different checkpoints in ", path.string(), ": ", all.front(),
                     " on rank 0, ", *other, " on rank ", other - all.begin()),
        "put the checkpoint where all hosts see the same files");
  }
  impl.position = position;
}

}  // namespace trireme

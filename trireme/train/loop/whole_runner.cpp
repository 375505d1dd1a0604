// SPDX-License-Identifier: Apache-2.0
// The runner of plans that `parallelize` carries out. Forward and backward are those of the module.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/module/evaluation_mode.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/loop/model_impl.h>
#include <trireme/train/loop/out_of_memory.h>

#include <torch/torch.h>

#include <algorithm>

namespace trireme {
namespace {

void broadcast_buffers(const torch::nn::Module& module, const comm::Group& group) {
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.value().defined()) continue;
    detail::broadcast_strided(detail::memory_of(buffer.value()), 0, group, buffer.key());
  }
}

}  // namespace

class Model::WholeRunner final : public Model::Runner {
 public:
  explicit WholeRunner(Impl& model)
      : model_(model),
        options_(model.options),
        parallelized_(parallelize(*model.module, options_.plan, options_.group)) {}

  Parallelized& parallelized() override { return parallelized_; }
  Parallelized* carrier() override { return &parallelized_; }
  Sharing sharing() const override { return parallelized_.sharing(); }
  const comm::Group& data_group() const override { return parallelized_.data_group(); }

  std::vector<comm::Group> peers() const override {
    if (!parallelized_.mesh().defined()) return {};
    return {parallelized_.mesh().group()};
  }

  void shard(torch::optim::Optimizer& optimizer) override { parallelized_.shard(optimizer); }
  void unshard(torch::optim::Optimizer& optimizer) override { parallelized_.unshard(optimizer); }
  void gather_parameters() override { parallelized_.gather_parameters(); }
  void complete() override {
    if (!cuts_parameters(options_.plan)) gather_parameters();
  }

  void prepare(const data::DataLoader& /*training*/) override {}
  void open(Run& run, const std::function<void()>& open) override;
  void step(Run& run, data::BatchStream* batches, StepEndContext& step) override;
  void abandon_step() override { parallelized_.abandon_step(); }

  Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches) override;
  at::Tensor predict(const at::Tensor& input) override;
  at::Tensor predict(const data::DataLoader& data) override;

  void add_to(checkpoint::State& /*state*/) const override {}
  checkpoint::State load(const std::filesystem::path& path) override {
    checkpoint::State state =
        load_checkpoint(path, parallelized_, *model_.module, &model_.optimizer);
    complete();
    return state;
  }

 private:
  // Returns whether operators in forward communicate with ranks that work on the same part of the
  // data.
  bool forward_is_shared() const { return parallelized_.mesh().defined(); }
  // Returns whether forward in training needs other ranks, so that nothing can replace a rank that
  // fails.
  bool forward_takes_all() const {
    return options_.group.size() > 1 &&
           (cuts_parameters(options_.plan) || options_.plan.sync_batch_norm || forward_is_shared());
  }

  void accumulate(Run& run, data::BatchStream& batches, StepEndContext& step,
                  std::string_view& doing);
  void count(const data::DataLoader& data, std::int64_t num_batches, MetricAccumulator& accumulator,
             std::string_view& doing);
  at::Tensor predict_batch(const at::Tensor& input);

  // Calls `call`, in which other ranks wait for this one. If it throws, ends the groups, which
  // tells the other ranks.
  // @param who returns what has failed, for the message.
  template <typename Call, typename Who>
  void abort_on_failure(const Call& call, const Who& who) {
    try {
      call();
    } catch (const CommError& error) {
      // Ranks along `data` may wait for this rank in other groups than the one that has failed.
      if (forward_is_shared()) parallelized_.abort(error.what());
      throw;
    } catch (...) {
      parallelized_.abort(join_message(who(), ": ", message_of(std::current_exception())));
      throw;
    }
  }

  Impl& model_;
  const ModelOptions& options_;
  Parallelized parallelized_;
};

std::unique_ptr<Model::Runner> Model::Runner::make_whole(Impl& model) {
  return std::make_unique<WholeRunner>(model);
}

void Model::WholeRunner::open(Run& run, const std::function<void()>& open) {
  constexpr std::string_view kDoing = "reading data";
  if (forward_takes_all()) {
    abort_on_failure(open, [&] { return run.calls.name_of(kDoing); });
  } else {
    run.calls.attempt(kDoing, open);
  }
}

void Model::WholeRunner::step(Run& run, data::BatchStream* batches, StepEndContext& step) {
  std::string_view doing;
  const auto call = [&] {
    detail::with_memory_account(*model_.module, model_.optimizer, model_.device,
                                [&] { accumulate(run, *batches, step, doing); });
  };
  bool is_through = batches != nullptr;
  if (is_through && forward_takes_all()) {
    abort_on_failure(call, [&] { return run.calls.name_of(doing); });
  } else if (is_through) {
    is_through = run.calls.attempt(doing, call);
  }
  if (!is_through) {
    model_.agreement.start(at::zeros({}), {.has_failed = true});
    parallelized_.finish_without_backward();
  }
  run.timer.split_last(Phase::kCommunication, parallelized_.seconds_of_exchange());
}

// Reads the micro-batches of a step, and runs forward and backward for each.
void Model::WholeRunner::accumulate(Run& run, data::BatchStream& batches, StepEndContext& step,
                                    std::string_view& doing) {
  const std::int64_t micro_batches = options_.plan.micro_batches;
  detail::StepTimer& timer = run.timer;
  std::vector<detail::MicroBatchLoss> losses;
  for (std::int64_t i = 1; i <= micro_batches; ++i) {
    doing = "reading data";
    const auto batch = timer.measure(Phase::kData, [&] { return batches.next(); });
    TRIREME_CHECK(batch.has_value());
    if (forward_is_shared() && step.step == 1 && i == 1) model_.check_same_batch(batch);
    if (i == 1) model_.note_rows(step, *batch);
    step.samples += batch->valid_rows();
    doing = "computing forward";
    const at::Tensor value = timer.measure(Phase::kForward, [&] { return model_.loss_of(*batch); });
    losses.push_back({value.detach(), batch->valid_rows()});
    if (i == micro_batches) model_.start_agreement(run, losses);
    doing = "computing backward";
    const std::optional<LossScale>& scale = model_.loss_scale;
    timer.measure(Phase::kBackward, [&] { (scale ? scale->scale(value) : value).backward(); });
  }
}

// Counts the batches that this rank evaluates.
void Model::WholeRunner::count(const data::DataLoader& data, std::int64_t num_batches,
                               MetricAccumulator& accumulator, std::string_view& doing) {
  const auto batches = data.open(0);
  for (std::int64_t number = 0; number < num_batches; ++number) {
    doing = "reading data";
    const auto batch = batches->next();
    if (number == 0 && forward_is_shared()) model_.check_same_batch(batch);
    if (!batch) break;
    doing = "computing forward";
    if (!model_.forward) {
      const at::Tensor value = model_.loss_of(*batch);
      if (batch->valid_rows() > 0) accumulator.add_loss(value.item<double>(), batch->valid_rows());
      continue;
    }
    const at::Tensor all_outputs = model_.output_of(model_.input_of(*batch));
    if (batch->valid_rows() == 0) continue;
    const at::Tensor output = detail::valid_rows(all_outputs, *batch);
    const at::Tensor target = detail::valid_rows(model_.target_for(output, *batch), *batch);
    accumulator.add_loss(full(model_.loss(output, target)).item<double>(), batch->valid_rows());
    doing = "counting";
    const at::Tensor predictions = full(output);
    accumulator.add_predictions(predictions, target);
    for (Metric& metric : options_.metrics) metric.add(predictions, target);
  }
}

Evaluation Model::WholeRunner::evaluate(const data::DataLoader& data, std::int64_t num_batches) {
  const detail::EvaluationMode mode(*model_.module);
  broadcast_buffers(*model_.module, data_group());
  detail::Failures failures(options_.group);
  std::string_view doing = "reading data";
  const auto who = [&] { return model_.name_in("an evaluation", doing); };
  // If forward needs all ranks, they must have equally many batches. Otherwise the parameters are
  // gathered first, and each rank evaluates alone.
  std::int64_t own_batches = -1;
  const auto count_batches = [&] { own_batches = std::min(num_batches, data.batches()); };
  const bool is_cut = cuts_parameters(options_.plan);
  if (is_cut && forward_is_shared()) {
    abort_on_failure(count_batches, who);
  } else if (is_cut) {
    failures.attempt(count_batches, who);
  }
  const bool is_together =
      is_cut && detail::all_counts(own_batches, options_.group).eq(own_batches).all().item<bool>();
  if (!is_together) gather_parameters();
  MetricAccumulator accumulator;
  const auto count_all = [&] { count(data, num_batches, accumulator, doing); };
  if (!failures.has_failed()) {
    is_together || forward_is_shared() ? abort_on_failure(count_all, who)
                                       : static_cast<void>(failures.attempt(count_all, who));
  }
  return model_.sum_evaluation(model_.counted_once(accumulator), failures, data_group());
}

at::Tensor Model::WholeRunner::predict(const at::Tensor& input) {
  if (forward_is_shared()) {
    model_.check_same_batch(data::Batch{.names = {"input"}, .columns = {at::atleast_1d(input)}});
  }
  return predict_batch(input);
}

// Returns the whole output for one batch.
at::Tensor Model::WholeRunner::predict_batch(const at::Tensor& input) {
  const detail::EvaluationMode mode(*model_.module);
  return full(model_.output_of(input));
}

at::Tensor Model::WholeRunner::predict(const data::DataLoader& data) {
  std::vector<at::Tensor> outputs;
  const auto batches = data.open(0);
  while (const auto batch = batches->next()) {
    if (outputs.empty() && forward_is_shared()) model_.check_same_batch(batch);
    outputs.push_back(detail::valid_rows(predict_batch(model_.input_of(*batch)), *batch));
  }
  return at::cat(outputs);
}

}  // namespace trireme

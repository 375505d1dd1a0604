// SPDX-License-Identifier: Apache-2.0
// The runner of plans that a TrainingStep carries out. Each batch of the data is a micro-batch, as
// with parallelize, so that the sums are the same.
#include <trireme/base/error.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/evaluation_mode.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/module/tensor_lines.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/training_step.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/loop/model_impl.h>
#include <trireme/train/loop/out_of_memory.h>
#include <trireme/train/pipeline_timeline_writer.h>

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme {
namespace {

bool has_memory(const torch::nn::Module& module) {
  const auto is_deferred = [](const at::Tensor& tensor) {
    return tensor.defined() && detail::is_deferred(tensor);
  };
  return std::ranges::none_of(module.parameters(), is_deferred) &&
         std::ranges::none_of(module.buffers(), is_deferred);
}

// Copies the buffers that this rank's stages use from the first rank along `data`.
void broadcast_buffers(const torch::nn::Module& module, const TrainingStep& training) {
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined() || detail::is_deferred(item.value())) continue;
    if (!detail::use_of(training.parallelized(), item.key()).is_own) continue;
    detail::broadcast_strided(detail::memory_of(item.value()), 0, training.data_group(),
                              item.key());
  }
}

UsageError unequal_batches() {
  return {"ranks that work on one part of the data together have different numbers of batches",
          "read the part of the data that trireme::data_part(plan, group) names"};
}

// Returns the smallest and the largest number of the ranks of all these groups.
std::pair<std::int64_t, std::int64_t> span_of(std::int64_t own,
                                              const std::vector<comm::Group>& groups) {
  std::pair span(own, own);
  for (const comm::Group& group : groups) {
    span = {detail::all_counts(span.first, group).min().item<std::int64_t>(),
            detail::all_counts(span.second, group).max().item<std::int64_t>()};
  }
  return span;
}

}  // namespace

class Model::StagedRunner final : public Model::Runner {
 public:
  explicit StagedRunner(Impl& model)
      : model_(model),
        options_(model.options),
        fits_whole_(has_memory(*model.module)),
        training_(
            *model.module,
            [&model](const std::vector<at::Tensor>& inputs) { return model.results_of(inputs); },
            options_.plan, options_.group) {
    if (options_.deterministic) training_.set_seed(*options_.deterministic);
  }

  Parallelized& parallelized() override {
    if (training_.has_stages()) return training_.parallelized();
    throw UsageError("which rank has what of a model in stages is not known before its first batch",
                     "train, evaluate or predict first");
  }
  Parallelized* carrier() override { return nullptr; }
  Sharing sharing() const override { return training_.sharing(); }
  const comm::Group& data_group() const override { return training_.data_group(); }

  std::vector<comm::Group> peers() const override {
    std::vector<comm::Group> groups = {training_.stage_group()};
    if (!training_.has_stages()) return groups;
    const DeviceMesh& mesh = training_.parallelized().mesh();
    if (mesh.defined()) groups.push_back(mesh.group());
    return groups;
  }

  void shard(torch::optim::Optimizer& optimizer) override { training_.shard(optimizer); }
  void unshard(torch::optim::Optimizer& optimizer) override { training_.unshard(optimizer); }
  void gather_parameters() override {
    parallelized();  // known with the first batch
    load_later();
    training_.gather_parameters();
  }
  void complete() override {
    if (cuts_parameters(options_.plan) || !training_.has_stages()) return;
    fits_whole_ ? training_.gather_parameters() : training_.parallelized().gather_parameters();
  }

  void prepare(const data::DataLoader& training) override;
  void open(Run& run, const std::function<void()>& open) override {
    run.calls.attempt("reading data", open);
  }
  void step(Run& run, data::BatchStream* batches, StepEndContext& step) override;
  void abandon_step() override {}

  Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches) override;
  at::Tensor predict(const at::Tensor& input) override { return predict_round({input}).front(); }
  at::Tensor predict(const data::DataLoader& data) override;

  void add_to(checkpoint::State& state) const override {
    state.entries["seed_of_stages"] = std::to_string(training_.seed());
  }
  checkpoint::State load(const std::filesystem::path& path) override;

 private:
  std::vector<data::Batch> read_round(data::BatchStream& batches, std::int64_t most) const;
  MicroBatches micro_batches_of(const std::vector<data::Batch>& round);
  void assign_stages(const MicroBatches& micro_batches);
  void assign_stages_of_any(const MicroBatches& micro_batches);
  void load_later();
  void count(const data::DataLoader& data, std::int64_t num_batches, MetricAccumulator& accumulator,
             detail::Failures& failures);
  std::vector<at::Tensor> predict_round(const std::vector<at::Tensor>& inputs);

  Impl& model_;
  const ModelOptions& options_;
  const bool fits_whole_;                           // the module, on every rank
  std::optional<std::filesystem::path> to_resume_;  // whose tensors are not loaded yet
  TrainingStep training_;
};

std::unique_ptr<Model::Runner> Model::Runner::make_staged(Impl& model) {
  return std::make_unique<StagedRunner>(model);
}

std::vector<data::Batch> Model::StagedRunner::read_round(data::BatchStream& batches,
                                                         std::int64_t most) const {
  std::vector<data::Batch> round;
  while (std::ssize(round) < most) {
    auto batch = batches.next();
    if (!batch) break;
    round.push_back(std::move(*batch));
  }
  return round;
}

MicroBatches Model::StagedRunner::micro_batches_of(const std::vector<data::Batch>& round) {
  MicroBatches micro_batches;
  for (const data::Batch& batch : round) micro_batches.push_back(model_.tensors_of(batch));
  return micro_batches;
}

void Model::StagedRunner::assign_stages(const MicroBatches& micro_batches) {
  {
    const detail::ModeGuard mode(*model_.module);
    model_.module->train();
    const torch::AutoGradMode as_in_training(true);
    training_.assign_stages(micro_batches);
  }
  load_later();
}

// Ranks may have different batches here. The first batch of the first rank that has one decides.
// Recording needs only its shapes.
void Model::StagedRunner::assign_stages_of_any(const MicroBatches& micro_batches) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  if (!micro_batches.empty()) {
    for (const at::Tensor& tensor : micro_batches.front()) {
      named.emplace_back(model_.columns.empty() ? "" : model_.columns[named.size()], tensor);
    }
  }
  const auto texts = comm::all_gather_text(detail::to_lines(named), options_.group);
  const auto found = std::ranges::find_if(texts, [](const auto& text) { return !text.empty(); });
  if (found == texts.end()) return;
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  for (const detail::TensorLine& line : detail::parse_lines(*found)) {
    tensors.push_back(at::zeros(line.sizes, at::device(model_.device).dtype(line.type)));
    if (!line.name.empty()) names.push_back(line.name);
  }
  if (model_.columns.empty()) model_.columns = std::move(names);
  assign_stages(MicroBatches{tensors});
}

// Loads the tensors of a checkpoint that was resumed before the stages were known. Tries again if
// it has failed before.
void Model::StagedRunner::load_later() {
  if (!to_resume_) return;
  load_checkpoint(*to_resume_, training_.parallelized(), *model_.module, &model_.optimizer);
  to_resume_.reset();
  complete();
}

void Model::StagedRunner::prepare(const data::DataLoader& training) {
  if (training_.has_stages()) return load_later();
  detail::Failures failures(options_.group);
  const auto attempt_together = [&](const auto& call) {
    failures.attempt(call, [&] {
      return join_message("rank ", options_.group.rank(), ", reading data before the first step");
    });
    const at::Tensor failed = detail::all_counts(failures.has_failed() ? 1 : 0, options_.group);
    if (failed.any().item<bool>()) failures.throw_on_all("training");
  };
  std::vector<data::Batch> round;
  MicroBatches micro_batches;
  attempt_together([&] {
    const std::int64_t steps_done = model_.position.is_between_epochs() ? 0 : model_.position.step;
    const auto batches =
        training.open(model_.position.next_epoch() - 1, steps_done * options_.plan.micro_batches);
    round = read_round(*batches, options_.plan.micro_batches);
    if (round.empty()) {
      throw UsageError(join_message("the data of an epoch has no batch left after step ",
                                    steps_done, ", where this training goes on"),
                       "give it the data that the checkpoint was made with, in batches of the same "
                       "size");
    }
    micro_batches = micro_batches_of(round);
  });
  attempt_together([&] { model_.check_same_batch(round.front()); });
  assign_stages(micro_batches);
}

// Reads all micro-batches before the first one goes through the stages, because the stages need all
// ranks.
void Model::StagedRunner::step(Run& run, data::BatchStream* batches, StepEndContext& step) {
  detail::StepTimer& timer = run.timer;
  std::vector<data::Batch> round;
  MicroBatches micro_batches;
  run.calls.attempt("reading data", [&] {
    if (batches == nullptr) return;  // the failure is already kept
    timer.measure(Phase::kData, [&] { round = read_round(*batches, options_.plan.micro_batches); });
    micro_batches = micro_batches_of(round);
  });
  model_.agree_to_stop(run);
  if (step.step == 1) {
    run.calls.attempt("reading data", [&] { model_.check_same_batch(round.front()); });
    model_.agree_to_stop(run);
  }
  model_.note_rows(step, round.front());
  for (const data::Batch& batch : round) step.samples += batch.valid_rows();
  const double scale = model_.loss_scale ? model_.loss_scale->value() : 1;
  model_.wants_timeline = false;
  const bool is_measured = std::exchange(model_.measures_step, false);
  MicroBatchResults results = timer.measure(Phase::kBackward, [&] {
    return detail::with_memory_account(*model_.module, model_.optimizer, model_.device, [&] {
      return training_.step_micro_batches(
          micro_batches, {.scale = scale, .number = step.global_step - 1, .report = is_measured});
    });
  });
  if (results.report) {
    step.pipeline = std::make_shared<const MeasuredPipeline>(
        MeasuredPipeline{.schedule = training_.schedule(), .report = std::move(*results.report)});
  }
  std::vector<detail::MicroBatchLoss> losses;
  for (const data::Batch& batch : round) {
    losses.push_back({results.losses[std::ssize(losses)], batch.valid_rows()});
  }
  model_.start_agreement(run, losses);
}

// If the data of a rank fails, or ends before that of other ranks along `pipe`, its pipeline ends
// the count. Other pipelines continue.
void Model::StagedRunner::count(const data::DataLoader& data, std::int64_t num_batches,
                                MetricAccumulator& accumulator, detail::Failures& failures) {
  std::string_view doing = "reading data";
  const auto who = [&] { return model_.name_in("an evaluation", doing); };
  std::unique_ptr<data::BatchStream> batches;
  std::vector<data::Batch> round;
  MicroBatches micro_batches;
  const auto read = [&] {
    if (!batches) batches = data.open(0);
    const std::int64_t most = std::min(options_.plan.micro_batches, num_batches);
    round = read_round(*batches, most);
    num_batches -= std::ssize(round);
    micro_batches = micro_batches_of(round);
  };
  failures.attempt(read, who);
  if (!training_.has_stages()) {
    const at::Tensor failed = detail::all_counts(failures.has_failed() ? 1 : 0, options_.group);
    if (failed.any().item<bool>()) return;
    assign_stages_of_any(micro_batches);
    if (!training_.has_stages()) return;  // no rank has a batch
  }
  load_later();
  training_.parallelized().gather_parameters();
  broadcast_buffers(*model_.module, training_);
  const std::vector<comm::Group> together = peers();
  while (true) {
    const auto [least, most] = span_of(failures.has_failed() ? -1 : std::ssize(round), together);
    if (least < 0 || most == 0) return;
    if (least != most) {
      failures.attempt([&] { throw unequal_batches(); }, who);
      return;
    }
    const MicroBatchResults results = training_.evaluate_micro_batches(micro_batches);
    doing = "counting";
    // Several ranks compute the same output; one of them counts it.
    const bool counts_outputs = together.size() == 1 || together.back().rank() == 0;
    const bool counts_losses = counts_outputs && together.front().rank() == 0;
    failures.attempt(
        [&] {
          for (std::size_t i = 0; i < round.size(); ++i) {
            if (counts_losses) {
              const at::Tensor value = results.losses[static_cast<std::int64_t>(i)];
              accumulator.add_loss(value.item<double>(), round[i].rows());
            }
            if (!counts_outputs || results.results.empty()) continue;
            if (!results.results[0][i].defined()) continue;  // another stage makes it
            const at::Tensor output = full(results.results[0][i]);
            accumulator.add_predictions(output, micro_batches[i][1]);
            for (Metric& metric : options_.metrics) metric.add(output, micro_batches[i][1]);
          }
        },
        who);
    doing = "reading data";
    failures.attempt(read, who);
  }
}

Evaluation Model::StagedRunner::evaluate(const data::DataLoader& data, std::int64_t num_batches) {
  detail::Failures failures(options_.group);
  MetricAccumulator accumulator;
  count(data, num_batches, accumulator, failures);
  // Only the rank that has the outputs has counted metrics. The others add zeros.
  return model_.sum_evaluation(accumulator, failures, options_.group);
}

std::vector<at::Tensor> Model::StagedRunner::predict_round(const std::vector<at::Tensor>& inputs) {
  MicroBatches micro_batches;
  for (const at::Tensor& input : inputs) micro_batches.push_back({input});
  training_.has_stages() ? load_later() : assign_stages_of_any(micro_batches);
  training_.parallelized().gather_parameters();
  MicroBatchResults results =
      training_.evaluate_micro_batches(micro_batches, {.share_results = true});
  return std::move(results.results.front());
}

at::Tensor Model::StagedRunner::predict(const data::DataLoader& data) {
  std::vector<at::Tensor> outputs;
  detail::Failures failures(training_.stage_group());
  std::unique_ptr<data::BatchStream> batches;
  while (true) {
    std::vector<data::Batch> round;
    std::vector<at::Tensor> inputs;
    failures.attempt(
        [&] {
          if (!batches) batches = data.open(0);
          round = read_round(*batches, options_.plan.micro_batches);
          for (const data::Batch& batch : round) inputs.push_back(model_.input_of(batch));
        },
        [&] { return model_.name_in("a prediction", "reading data"); });
    const auto [least, most] = span_of(failures.has_failed() ? -1 : std::ssize(round), peers());
    if (least < 0) failures.throw_on_all("the prediction");
    if (least != most) throw unequal_batches();
    if (most == 0) return at::cat(outputs);
    const std::vector<at::Tensor> of_round = predict_round(inputs);
    for (std::size_t i = 0; i < round.size(); ++i) {
      outputs.push_back(detail::valid_rows(of_round[i], round[i]));
    }
  }
}

// Before the first batch it is not known which rank needs which tensors, so they are loaded later.
checkpoint::State Model::StagedRunner::load(const std::filesystem::path& path) {
  checkpoint::State state;
  if (training_.has_stages()) {
    state = load_checkpoint(path, training_.parallelized(), *model_.module, &model_.optimizer);
    to_resume_.reset();
    complete();
  } else {
    const auto found = checkpoint::agree(options_.group, "cannot load", [&] {
      const checkpoint::Reader reader(path);
      state = checkpoint::state_for_rank(reader, options_.group.rank());
      return checkpoint::identify(reader);
    });
    checkpoint::check_same(found, path);
    to_resume_ = path;
  }
  if (state.entries.contains("seed_of_stages")) {
    training_.set_seed(detail::number_entry<std::uint64_t>(state, "seed_of_stages"));
  }
  return state;
}

}  // namespace trireme

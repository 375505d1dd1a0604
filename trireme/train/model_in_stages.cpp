// SPDX-License-Identifier: Apache-2.0
// A model whose plan has stages: what goes through trireme::TrainingStep. Each batch that the data
// gives is a micro-batch, as it is without stages, so that the sums are the same.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/detail/model_impl.h>

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace trireme {
namespace {

// What parallelize does not do.
bool needs_stages(const Plan& plan) {
  const bool has_axis =
      std::ranges::find(plan.mesh, kStageAxis, &MeshAxis::name) != plan.mesh.end();
  return has_axis || !plan.stages.empty() || !plan.recompute.empty() || plan.activation_bytes > 0 ||
         plan.offload_activations;
}

bool has_memory(const torch::nn::Module& module) {
  const auto is_deferred = [](const at::Tensor& tensor) {
    return tensor.defined() && detail::is_deferred(tensor);
  };
  return std::ranges::none_of(module.parameters(), is_deferred) &&
         std::ranges::none_of(module.buffers(), is_deferred);
}

// Of what this rank's stages use: those of the first rank along data.
void broadcast_buffers(const torch::nn::Module& module, const TrainingStep& pipeline) {
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined() || detail::is_deferred(item.value())) continue;
    if (!detail::use_of(pipeline.parallelized(), item.key()).is_own) continue;
    detail::broadcast_strided(detail::memory_of(item.value()), 0, pipeline.data_group(),
                              item.key());
  }
}

// A line for each tensor of a batch: its type, its sizes and, in a model of a function, its name.
std::string describe(const std::vector<at::Tensor>& tensors,
                     const std::vector<std::string>& names) {
  TextWriter text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text << static_cast<int>(tensors[i].scalar_type()) << " " << tensors[i].dim();
    for (const std::int64_t size : tensors[i].sizes()) text << " " << size;
    if (!names.empty()) text << " " << names[i];
    text << "\n";
  }
  return text.str();
}

UsageError unequal_batches() {
  return {"ranks that work on one part of the data together have different numbers of batches",
          "read the part of the data that trireme::data_part(plan, group) names"};
}

// The least and the largest number of the ranks of all these groups.
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

std::optional<Parallelized> Model::Impl::make_whole() const {
  const Plan plan = checked(options.plan);
  if (needs_stages(plan)) return std::nullopt;
  return parallelize(*module, plan, options.group);
}

std::optional<TrainingStep> Model::Impl::make_stages() {
  if (in_whole) return std::nullopt;
  stages.fits_whole = has_memory(*module);
  TrainingStep pipeline(
      *module, [this](const std::vector<at::Tensor>& inputs) { return results_of(inputs); },
      options.plan, options.group);
  if (options.deterministic) pipeline.set_seed(*options.deterministic);
  return pipeline;
}

Parallelized& Model::Impl::parallelized() {
  if (in_whole) return *in_whole;
  if (in_stages->has_stages()) return in_stages->parallelized();
  throw UsageError("which rank has what of a model in stages is not known before its first batch",
                   "train, evaluate or predict first");
}

Sharing Model::Impl::sharing() const {
  return in_whole ? in_whole->sharing() : in_stages->sharing();
}

const comm::Group& Model::Impl::data_group() const {
  return in_whole ? in_whole->data_group() : in_stages->data_group();
}

std::vector<comm::Group> Model::Impl::peers() const {
  std::vector<comm::Group> groups;
  if (in_stages) groups.push_back(in_stages->stage_group());
  const DeviceMesh mesh = in_whole                  ? in_whole->mesh()
                          : in_stages->has_stages() ? in_stages->parallelized().mesh()
                                                    : DeviceMesh();
  if (mesh.defined()) groups.push_back(mesh.group());
  return groups;
}

void Model::Impl::complete() {
  if (cuts_parameters(options.plan)) return;
  if (in_whole) return in_whole->gather_parameters();
  if (!in_stages->has_stages()) return;
  stages.fits_whole ? in_stages->gather_parameters()
                    : in_stages->parallelized().gather_parameters();
}

// What is captured: the loss, and the output where there is one. Of an input alone, which comes
// from predict, the output, behind a number that stands where the loss does.
std::vector<at::Tensor> Model::Impl::results_of(const std::vector<at::Tensor>& inputs) const {
  if (!forward) {
    return {in_precision([&] {
      return batch_loss({.names = stages.columns, .columns = inputs, .padded_rows = 0});
    })};
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
  if (forward) return {input_of(batch), target_of(batch)};
  stages.columns = batch.names;
  std::vector<at::Tensor> columns;
  for (const at::Tensor& column : batch.columns) columns.push_back(column.to(device));
  return columns;
}

std::vector<data::Batch> Model::Impl::read_round(data::BatchStream& batches,
                                                 std::int64_t most) const {
  std::vector<data::Batch> round;
  while (std::ssize(round) < most) {
    auto batch = batches.next();
    if (!batch) break;
    round.push_back(std::move(*batch));
  }
  return round;
}

MicroBatches Model::Impl::micro_batches_of(const std::vector<data::Batch>& round) {
  MicroBatches micro_batches;
  for (const data::Batch& batch : round) micro_batches.push_back(tensors_of(batch));
  return micro_batches;
}

void Model::Impl::assign_stages(const MicroBatches& micro_batches) {
  {
    const detail::ModeGuard mode(*module);
    module->train();
    const torch::AutoGradMode as_in_training(true);
    in_stages->assign_stages(micro_batches);
  }
  load_later();
}

// Of batches that ranks do not have alike, the first rank's first one decides. Records need its
// shapes alone.
void Model::Impl::assign_stages_of_any(const MicroBatches& micro_batches) {
  const auto texts = comm::all_gather_text(
      micro_batches.empty() ? "" : describe(micro_batches.front(), stages.columns), options.group);
  const auto found = std::ranges::find_if(texts, [](const auto& text) { return !text.empty(); });
  if (found == texts.end()) return;
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  TextReader lines(*found);
  for (std::string line; std::getline(lines, line);) {
    TextReader words(line);
    int type = 0;
    std::size_t num_dims = 0;
    words >> type >> num_dims;
    std::vector<std::int64_t> sizes(num_dims);
    for (std::int64_t& size : sizes) words >> size;
    tensors.push_back(
        at::zeros(sizes, at::device(device).dtype(static_cast<at::ScalarType>(type))));
    if (std::string name; std::getline(words >> std::ws, name)) names.push_back(name);
  }
  if (stages.columns.empty()) stages.columns = std::move(names);
  assign_stages(MicroBatches{tensors});
}

// Again where it has failed before.
void Model::Impl::load_later() {
  if (!stages.to_resume) return;
  load_checkpoint(*stages.to_resume, in_stages->parallelized(), *module, &optimizer);
  stages.to_resume.reset();
  complete();
}

void Model::Impl::assign_stages(const data::DataLoader& training) {
  if (in_stages->has_stages()) return load_later();
  detail::Failures failures(options.group);
  const auto attempt_together = [&](const auto& call) {
    failures.attempt(call, [&] {
      return join_message("rank ", options.group.rank(), ", reading data before the first step");
    });
    const at::Tensor failed = detail::all_counts(failures.has_failed() ? 1 : 0, options.group);
    if (failed.any().item<bool>()) failures.throw_on_all("training");
  };
  std::vector<data::Batch> round;
  MicroBatches micro_batches;
  attempt_together([&] {
    const std::int64_t steps_done = position.is_between_epochs() ? 0 : position.step;
    const auto batches =
        training.open(position.next_epoch() - 1, steps_done * options.plan.micro_batches);
    round = read_round(*batches, options.plan.micro_batches);
    if (round.empty()) {
      throw UsageError(join_message("the data of an epoch has no batch left after step ",
                                    steps_done, ", where this training goes on"),
                       "give it the data that the checkpoint was made with, in batches of the same "
                       "size");
    }
    micro_batches = micro_batches_of(round);
  });
  attempt_together([&] { check_same_batch(round.front()); });
  assign_stages(micro_batches);
}

// A rank whose data fails, or ends before that of the others along `pipe`, ends the count of its
// pipeline; the others go on without it.
void Model::Impl::count_in_stages(const data::DataLoader& data, std::int64_t num_batches,
                                  MetricAccumulator& accumulator, detail::Failures& failures) {
  std::string_view doing = "reading data";
  const auto who = [&] {
    return join_message("rank ", options.group.rank(), ", ", doing, " in an evaluation");
  };
  std::unique_ptr<data::BatchStream> batches;
  std::vector<data::Batch> round;
  MicroBatches micro_batches;
  const auto read = [&] {
    if (!batches) batches = data.open(0);
    const std::int64_t most = std::min(options.plan.micro_batches, num_batches);
    round = read_round(*batches, most);
    num_batches -= std::ssize(round);
    micro_batches = micro_batches_of(round);
  };
  failures.attempt(read, who);
  if (!in_stages->has_stages()) {
    const at::Tensor failed = detail::all_counts(failures.has_failed() ? 1 : 0, options.group);
    if (failed.any().item<bool>()) return;
    assign_stages_of_any(micro_batches);
    if (!in_stages->has_stages()) return;  // no rank has a batch
  }
  load_later();
  in_stages->parallelized().gather_parameters();
  broadcast_buffers(*module, *in_stages);
  const std::vector<comm::Group> together = peers();
  while (true) {
    const auto [least, most] = span_of(failures.has_failed() ? -1 : std::ssize(round), together);
    if (least < 0 || most == 0) return;
    if (least != most) {
      failures.attempt([&] { throw unequal_batches(); }, who);
      return;
    }
    const MicroBatchResults results = in_stages->evaluate_micro_batches(micro_batches);
    doing = "counting";
    // Ranks that make the same output count it once.
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
            for (Metric& metric : options.metrics) metric.add(output, micro_batches[i][1]);
          }
        },
        who);
    doing = "reading data";
    failures.attempt(read, who);
  }
}

Evaluation Model::Impl::evaluate_in_stages(const data::DataLoader& data, std::int64_t num_batches) {
  detail::Failures failures(options.group);
  for (Metric& metric : options.metrics) metric.clear();
  MetricAccumulator accumulator;
  count_in_stages(data, num_batches, accumulator, failures);
  // On the rank that has the outputs; the others have nothing to add.
  for (Metric& metric : options.metrics) metric.all_reduce(options.group);
  accumulator.failures = failures.has_failed() ? 1 : 0;
  const MetricAccumulator all = all_reduce(accumulator, options.group);
  if (all.failures > 0) failures.throw_on_all("the evaluation");
  return all.evaluation();
}

std::vector<at::Tensor> Model::Impl::predict_in_stages(const std::vector<at::Tensor>& inputs) {
  MicroBatches micro_batches;
  for (const at::Tensor& input : inputs) micro_batches.push_back({input});
  in_stages->has_stages() ? load_later() : assign_stages_of_any(micro_batches);
  in_stages->parallelized().gather_parameters();
  MicroBatchResults results =
      in_stages->evaluate_micro_batches(micro_batches, {.share_results = true});
  return std::move(results.results.front());
}

at::Tensor Model::Impl::predict_in_stages(const data::DataLoader& data) {
  std::vector<at::Tensor> outputs;
  detail::Failures failures(in_stages->stage_group());
  std::unique_ptr<data::BatchStream> batches;
  while (true) {
    std::vector<data::Batch> round;
    std::vector<at::Tensor> inputs;
    failures.attempt(
        [&] {
          if (!batches) batches = data.open(0);
          round = read_round(*batches, options.plan.micro_batches);
          for (const data::Batch& batch : round) inputs.push_back(input_of(batch));
        },
        [&] {
          return join_message("rank ", options.group.rank(), ", reading data in a prediction");
        });
    const auto [least, most] = span_of(failures.has_failed() ? -1 : std::ssize(round), peers());
    if (least < 0) failures.throw_on_all("the prediction");
    if (least != most) throw unequal_batches();
    if (most == 0) return at::cat(outputs);
    const std::vector<at::Tensor> of_round = predict_in_stages(inputs);
    for (std::size_t i = 0; i < round.size(); ++i) {
      outputs.push_back(detail::valid_rows(of_round[i], round[i]));
    }
  }
}

// Which rank takes which tensors is known with the first batch.
checkpoint::State Model::Impl::resume_later(const std::filesystem::path& path) {
  checkpoint::State state;
  const auto found = checkpoint::agree(options.group, "cannot load", [&] {
    const checkpoint::Reader reader(path);
    state = checkpoint::state_for_rank(reader, options.group.rank());
    return checkpoint::identify(reader);
  });
  checkpoint::check_same(found, path);
  return state;
}

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include "examples/training.h"
#include <trireme/base/config/suggestion.h>
#include <trireme/trireme.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace examples {
namespace data = trireme::data;
namespace {

std::int64_t steps_in_epoch(const data::DataLoader& batches, const trireme::Model& model) {
  return batches.batches() / model.options().plan.micro_batches;
}

// The library allows any name that layouts name; the examples know the usual ones.
void check_axes(const trireme::Plan& plan) {
  const std::vector<std::string> known{"data", "pipe", "tensor", "context", "expert"};
  for (const trireme::MeshAxis& axis : plan.mesh) {
    if (std::ranges::find(known, axis.name) != known.end()) continue;
    throw trireme::UsageError(
        trireme::join_message("plan: mesh is ", trireme::to_string(plan.mesh),
                              ", expected the axes data, pipe, tensor, context and expert"),
        trireme::config::did_you_mean(axis.name, known));
  }
}

bool is_automatic(const trireme::Model& model) {
  return model.options().plan.mode == trireme::PlanMode::kAutomatic;
}

data::DataLoader divided(data::DataLoader samples, const trireme::Model& model, std::int64_t rows,
                         data::Remainder remainder, data::LastBatch last) {
  const std::int64_t parts = batches_of_step(model);
  if (rows % parts != 0) {
    const std::int64_t micro_batches = model.options().plan.micro_batches;
    throw trireme::UsageError(
        trireme::join_message("--batch is ", rows, ", expected a multiple of ", parts,
                              ": ranks along data (", parts / micro_batches,
                              ") times micro-batches (", micro_batches, ")"),
        "change --batch, the plan's micro_batches, or the number of ranks along data");
  }
  shard(samples, model, remainder);
  return samples.batch(rows / parts, last).prefetch(2);
}

}  // namespace

void add_options(CLI::App& app, PlanOptions& options) {
  app.add_option("--plan", options.plan, "TOML file that says how training is parallel")
      ->check(CLI::ExistingFile);
  app.add_option("--plan-set", options.plan_settings,
                 "Setting of the plan, such as mesh=data=2,tensor=2 or zero_level=1");
}

void add_options(CLI::App& app, TrainingOptions& options) {
  add_number(app, "--epochs", options.epochs, "Passes over the data");
  add_number(app, "--batch", options.batch, "Samples of all ranks in a step");
  app.add_option("--learning-rate", options.learning_rate, "Highest learning rate")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, dropout and the order of samples")
      ->capture_default_str();
  app.add_option("--run", options.run,
                 "Folder for checkpoints and records; a second start goes on from there");
  app.add_option("--save-every", options.save_every,
                 "Steps between checkpoints, beside those at the end of each epoch; 0 for none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_options(app, static_cast<PlanOptions&>(options));
}

void add_number(CLI::App& app, const std::string& name, std::int64_t& number,
                const std::string& description) {
  app.add_option(name, number, description)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
}

trireme::Plan plan_for(const PlanOptions& options, const torch::nn::Module& network,
                       const trireme::comm::Group& group) {
  trireme::PlanSettings settings;
  trireme::config::Configuration configuration(settings);
  if (!options.plan.empty()) configuration.read_file(options.plan);
  for (const std::string& assignment : options.plan_settings) configuration.set(assignment);
  trireme::Plan plan = trireme::requested_plan(settings.plan);
  if (plan.layouts.empty()) check_axes(plan);
  const auto has_axis = [&](const char* name) {
    return std::ranges::find(plan.mesh, name, &trireme::MeshAxis::name) != plan.mesh.end();
  };
  if (plan.layouts.empty()) {
    trireme::ParameterLayouts experts;
    trireme::ParameterLayouts layers;
    if (has_axis("expert")) experts = trireme::expert_layouts(network);
    if (has_axis("tensor")) layers = trireme::transformer_layouts(network);
    plan.layouts = trireme::join({experts, layers});
  }
  if (plan.mode == trireme::PlanMode::kManual) trireme::check_plan(plan, {.ranks = group.size()});
  return plan;
}

double flops_per_sample(torch::nn::Module& network,
                        const std::function<at::Tensor(const data::Batch& batch)>& loss,
                        data::DataLoader samples) {
  const auto first = samples.batch(1).open(0)->next();
  if (!first) throw trireme::UsageError("the data to train on has no sample", "give it some");
  return trireme::predict::model_flops(network, [&] { return loss(*first); });
}

std::int64_t batches_of_step(const trireme::Model& model) {
  if (is_automatic(model)) return 1;
  const trireme::ModelOptions& options = model.options();
  return trireme::data_part(options.plan, options.group).count * options.plan.micro_batches;
}

void shard(data::DataLoader& samples, const trireme::Model& model, data::Remainder remainder) {
  if (is_automatic(model)) return;
  const auto part = trireme::data_part(model.options().plan, model.options().group);
  samples.shard({.index = part.index, .count = part.count, .remainder = remainder});
}

data::DataLoader training_batches(data::DataLoader samples, const trireme::Model& model,
                                  std::int64_t rows) {
  auto batches =
      divided(std::move(samples), model, rows, data::Remainder::kDrop, data::LastBatch::kDrop);
  if (steps_in_epoch(batches, model) > 0) return batches;
  throw trireme::UsageError(
      trireme::join_message("--batch is ", rows, ", and there are fewer samples to train on"),
      "give more data, or a smaller batch");
}

data::DataLoader evaluation_batches(data::DataLoader samples, const trireme::Model& model,
                                    std::int64_t rows) {
  return divided(std::move(samples), model, rows, data::Remainder::kUneven, data::LastBatch::kKeep);
}

trireme::Evaluation train(trireme::Model& model, const data::DataLoader& training,
                          const data::DataLoader& validation, const TrainingOptions& options,
                          trireme::Callbacks callbacks) {
  const std::int64_t in_epoch = steps_in_epoch(training, model);
  const std::int64_t steps = options.epochs * in_epoch;
  trireme::LearningRate rate(model.optimizer(),
                             trireme::LearningRateSchedule::cosine(options.learning_rate, steps)
                                 .after_warm_up(steps / 20 + 1));
  trireme::LossMonitor monitor(std::max<std::int64_t>(1, in_epoch / 5));
  callbacks.insert(callbacks.end(), {rate, monitor});
  const trireme::checkpoint::SaveOptions save{.folder = options.run, .prefix = options.name};
  std::optional<trireme::Checkpoint> checkpoint;
  std::optional<trireme::JsonlWriter> events;
  std::optional<trireme::PipelineTimelineWriter> timeline;
  if (!options.run.empty()) {
    callbacks.emplace_back(checkpoint.emplace(
        trireme::CheckpointOptions{.save = save, .every_steps = options.save_every}));
    callbacks.emplace_back(
        events.emplace(trireme::JsonlWriterOptions{.folder = options.run,
                                                   .tokens_per_sample = options.tokens_per_sample,
                                                   .flops_per_sample = options.flops_per_sample}));
    callbacks.emplace_back(
        timeline.emplace(trireme::PipelineTimelineWriterOptions{.folder = options.run}));
    if (const auto newest = trireme::checkpoint::latest(save.folder, save.prefix))
      model.resume(*newest);
  }
  model.fit(training, validation, {.epochs = options.epochs, .callbacks = callbacks});
  return model.evaluate(validation);
}

}  // namespace examples

// SPDX-License-Identifier: Apache-2.0
// What the examples of transformers share: a training whose plan comes from the command line, with
// batches that make a step the same for any plan, a learning rate, checkpoints and records.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/data/data_loader.h>
#include <trireme/plan/plan.h>
#include <trireme/train/model.h>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace examples {

/// How training is parallel.
struct PlanOptions {
  std::string plan;
  std::vector<std::string> plan_settings;
};

/// Adds --plan and --plan-set, which are those of `trireme predict`.
void add_options(CLI::App& app, PlanOptions& options);

struct TrainingOptions : PlanOptions {
  std::string name;  // of the example
  std::int64_t epochs = 10;
  std::int64_t batch = 16;
  double learning_rate = 1e-3;
  std::uint64_t seed = 1;  // of weights, dropout and the order of samples
  std::string run;
  std::int64_t save_every = 0;  // steps between checkpoints; 0: only at the end of each epoch
  std::optional<std::int64_t> tokens_per_sample;  // of language models, for the records
  std::optional<double> flops_per_sample;         // of forward and backward, for the records
};

/// Adds the options of a training with those of its plan.
void add_options(CLI::App& app, TrainingOptions& options);

/// Adds an option that is 1 or more.
void add_number(CLI::App& app, const std::string& name, std::int64_t& number,
                const std::string& description);

/// Returns the plan that the options give, or `trireme run --plan` in their place. Layouts along
/// `tensor` and `expert` are found in the network if the plan has none. Throws UsageError for a
/// plan that does not fit the number of ranks.
trireme::Plan plan_for(const PlanOptions& options, const torch::nn::Module& network,
                       const trireme::comm::Group& group);

/// Counts the FLOPs of forward and backward for each sample, by the first of the samples. Call it
/// before a Model takes the network.
double flops_per_sample(torch::nn::Module& network,
                        const std::function<at::Tensor(const trireme::data::Batch& batch)>& loss,
                        trireme::data::DataLoader samples);

/// Returns how many batches of one rank make a step of all ranks. A plan that is found
/// automatically divides one batch itself.
std::int64_t batches_of_step(const trireme::Model& model);

/// Selects the samples of this rank, unless the plan is found automatically.
void shard(trireme::data::DataLoader& samples, const trireme::Model& model,
           trireme::data::Remainder remainder);

/// Divides samples into batches so that a step of the model has `rows` of them, together in all
/// ranks and micro-batches: it is the same step with any plan. Samples that fill no step are left
/// out. Throws UsageError if the plan cannot divide `rows`, and if there are fewer samples.
trireme::data::DataLoader training_batches(trireme::data::DataLoader samples,
                                           const trireme::Model& model, std::int64_t rows);

/// Does the same for an evaluation, in which every sample counts once.
trireme::data::DataLoader evaluation_batches(trireme::data::DataLoader samples,
                                             const trireme::Model& model, std::int64_t rows);

/// Trains and validates with batches of these functions, and returns the last evaluation. The
/// learning rate rises, and falls along a cosine. With --run, goes on from the newest checkpoint
/// there. Collective.
trireme::Evaluation train(trireme::Model& model, const trireme::data::DataLoader& training,
                          const trireme::data::DataLoader& validation,
                          const TrainingOptions& options, trireme::Callbacks callbacks = {});

}  // namespace examples

// SPDX-License-Identifier: Apache-2.0
// Trains a GPT with mixtures of experts to predict the next character of a text, over as many
// processes as it is started with. At the end it says how busy the experts were.
#include "examples/language_model.h"
#include "examples/option_checks.h"
#include <models/mixture.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>

struct Options : examples::LanguageOptions {
  std::int64_t experts = 8;
  std::int64_t experts_per_token = 2;
  double capacity_factor = 1.25;
  double balance_weight = 0.01;
  bool is_dropless = false;
};

void add_options(CLI::App& app, Options& options) {
  add_options(app, static_cast<examples::LanguageOptions&>(options));
  examples::add_number(app, "--experts", options.experts,
                       "Experts in every second block, in place of its MLP");
  examples::add_number(app, "--experts-per-token", options.experts_per_token,
                       "Experts that process a token");
  app.add_option("--capacity-factor", options.capacity_factor,
                 "Tokens that an expert takes at most, as a multiple of an even share")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--dropless", options.is_dropless,
               "Experts take all tokens that choose them, whatever --capacity-factor is");
  app.add_option("--balance", options.balance_weight, "Weight of the loss of unequal shares")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

// What the experts of one mixture have taken and dropped.
struct Counts {
  std::map<std::string, double> taken;  // by the number of the expert
  double dropped = 0;
};

// Adds what CountMonitor has logged for a step, such as `blocks.1.mixture.tokens_taken/0`.
void add_counts(std::map<std::string, Counts>& mixtures, const trireme::Scalars& logged) {
  for (const auto& [name, number] : logged) {
    const auto end = name.find(".tokens_");
    if (end == std::string::npos) continue;
    Counts& counts = mixtures[name.substr(0, end)];
    if (name.find("tokens_taken", end) != std::string::npos) {
      counts.taken[name.substr(name.rfind('/') + 1)] += number;
    } else {
      counts.dropped += number;
    }
  }
}

void print(const std::map<std::string, Counts>& mixtures) {
  for (const auto& [name, counts] : mixtures) {
    double all = counts.dropped;
    double most = 0;
    for (const auto& [expert, taken] : counts.taken) {
      all += taken;
      most = std::max(most, taken);
    }
    const double even = (all - counts.dropped) / static_cast<double>(counts.taken.size());
    std::cout << name << ": the busiest expert took " << most / even << " times an even share, "
              << 100 * counts.dropped / all << " % of the choices were dropped" << std::endl;
  }
}

void run(Options options) {
  examples::check_divides({"--heads", options.heads}, {"--hidden", options.hidden});
  if (options.layers % 2 != 0) {
    throw trireme::UsageError(
        trireme::join_message("--layers is ", options.layers, ", expected an even number"),
        "every second block has experts");
  }
  examples::check_at_most({"--experts-per-token", options.experts_per_token},
                          {"--experts", options.experts});
  const auto world = trireme::init();
  torch::manual_seed(options.seed);
  const examples::Text text = examples::read_text(options);
  const models::MixtureOptions sizes{.gpt = {.vocabulary = text.tokenizer->vocabulary_size(),
                                             .sequence = options.sequence,
                                             .hidden = options.hidden,
                                             .layers = options.layers,
                                             .heads = options.heads},
                                     .experts = options.experts,
                                     .experts_per_token = options.experts_per_token,
                                     .capacity_factor = options.capacity_factor,
                                     .is_dropless = options.is_dropless,
                                     .run_experts = trireme::run_experts,
                                     .counts_tokens = true};
  models::MixtureGPT network(sizes);
  torch::optim::AdamW optimizer(network->parameters(), options.learning_rate);
  const auto loss = [&](const trireme::data::Batch& rows) {
    const auto [logits, balance_loss] = network(rows["input"]);
    const auto error = trireme::CrossEntropy()(logits.transpose(1, 2), rows["target"]);
    return network->is_training() ? error + options.balance_weight * balance_loss : error;
  };
  // A dry run cannot count the tokens that each expert gets without a capacity.
  if (!options.run.empty() && !options.is_dropless) {
    options.flops_per_sample =
        examples::flops_per_sample(*network, loss, trireme::data::DataLoader(text.training));
  }
  trireme::Plan plan = examples::plan_for(options, *network, world.group);
  plan.broadcast_buffers = false;  // each rank counts the tokens of its own sequences
  trireme::Model model(
      loss, network.ptr(), optimizer,
      {.group = world.group, .plan = plan, .clip_norm = 1.0, .deterministic = options.seed});

  std::map<std::string, Counts> last_epoch;
  trireme::CountMonitor counts({.buffers = {"*.tokens_taken", "*.tokens_dropped"}});
  trireme::LambdaCallback sums({.step_end = [&](const trireme::StepEndContext& step) {
    if (step.step == 1) last_epoch.clear();
    add_counts(last_epoch, *step.run.scalars);
  }});
  examples::train(model, text, options, {counts, sums});
  if (world.is_first()) print(last_epoch);

  models::MixtureGPT writer(sizes);
  examples::copy_parameters(model, *writer);
  examples::write(writer, text, options, world);
}

int main(int argc, char** argv) {
  Options options;
  options.name = "moe";
  CLI::App app("Trains a GPT with mixtures of experts over one or more processes");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "moe: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}

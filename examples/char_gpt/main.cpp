// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT to predict the next character of a text, over as many processes as it is
// started with. Validates it on the text's last tenth, and lets it write.
#include "examples/language_model.h"
#include "examples/option_checks.h"
#include <models/gpt.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <iostream>

struct Options : examples::LanguageOptions {
  double dropout = 0.1;
};

void run(Options options) {
  examples::check_divides({"--heads", options.heads}, {"--hidden", options.hidden});
  const auto world = trireme::init();
  torch::manual_seed(options.seed);
  const examples::Text text = examples::read_text(options);
  const models::GPTOptions sizes{.vocabulary = text.tokenizer->vocabulary_size(),
                                 .sequence = options.sequence,
                                 .hidden = options.hidden,
                                 .layers = options.layers,
                                 .heads = options.heads,
                                 .dropout = options.dropout};
  models::GPT network(sizes);
  torch::optim::AdamW optimizer(network->parameters(), options.learning_rate);
  const auto loss = [&](const trireme::data::Batch& rows) {
    return trireme::CrossEntropy()(network(rows["input"]).transpose(1, 2), rows["target"]);
  };
  if (!options.run.empty()) {
    options.flops_per_sample =
        examples::flops_per_sample(*network, loss, trireme::data::DataLoader(text.training));
  }
  const trireme::Plan plan = examples::plan_for(options, *network, world.group);
  trireme::Model model(
      loss, network.ptr(), optimizer,
      {.group = world.group, .plan = plan, .clip_norm = 1.0, .deterministic = options.seed});
  examples::train(model, text, options);

  models::GPT writer(sizes);
  examples::copy_parameters(model, *writer);
  examples::write(writer, text, options, world);
}

int main(int argc, char** argv) {
  Options options;
  options.name = "char_gpt";
  CLI::App app("Trains a small GPT on the characters of a text over one or more processes");
  add_options(app, options);
  app.add_option("--dropout", options.dropout, "Share of activations that are left out")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "char_gpt: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}

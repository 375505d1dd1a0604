// SPDX-License-Identifier: Apache-2.0
// Trains a small LLaMA to predict the next character of a text, over as many processes as it is
// started with. It can also begin with the weights and the tokenizer of a model of Hugging Face,
// and save what it has learned in that form.
#include "examples/language_model.h"
#include "examples/llama/pretrained_folder.h"
#include "examples/option_checks.h"
#include <models/llama.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <iostream>

struct Options : examples::LanguageOptions {
  std::int64_t key_value_heads = 2;
  std::string pretrained;
  std::string save;
};

// Every block has an MLP of about as many parameters as one of four times the width without a gate.
models::LLaMAOptions sizes_of(const Options& options, std::int64_t vocabulary) {
  constexpr std::int64_t kMultiple = 8;
  return {.vocabulary = vocabulary,
          .sequence = options.sequence,
          .hidden = options.hidden,
          .layers = options.layers,
          .heads = options.heads,
          .key_value_heads = options.key_value_heads,
          .feed_forward = (8 * options.hidden / 3 + kMultiple - 1) / kMultiple * kMultiple};
}

void check(const Options& options) {
  if (options.hidden % (2 * options.heads) != 0) {
    throw trireme::UsageError(
        trireme::join_message("--heads is ", options.heads, ", expected a number of which --hidden",
                              ", which is ", options.hidden, ", is an even multiple"),
        "rotary positions turn the features of a head in pairs");
  }
  examples::check_divides({"--key-value-heads", options.key_value_heads},
                          {"--heads", options.heads});
}

void run(Options options) {
  if (options.pretrained.empty()) check(options);
  const auto world = trireme::init();
  torch::manual_seed(options.seed);
  const bool is_pretrained = !options.pretrained.empty();
  const examples::Text text = examples::read_text(
      options, is_pretrained ? examples::read_tokenizer(options.pretrained) : nullptr);
  const models::LLaMAOptions sizes = is_pretrained
                                         ? examples::read_options(options.pretrained)
                                         : sizes_of(options, text.tokenizer->vocabulary_size());
  models::LLaMA network(sizes);
  if (is_pretrained) examples::load_weights(options.pretrained, *network);

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

  models::LLaMA trained(sizes);
  examples::copy_parameters(model, *trained);
  examples::write(trained, text, options, world);
  if (!options.save.empty() && world.is_first()) {
    examples::write_folder(options.save, sizes, *text.tokenizer, *trained);
  }
}

int main(int argc, char** argv) {
  Options options;
  options.name = "llama";
  CLI::App app("Trains a small LLaMA on a text over one or more processes");
  add_options(app, options);
  examples::add_number(app, "--key-value-heads", options.key_value_heads,
                       "Heads of keys and values, which the heads of queries share");
  auto* const pretrained = app.add_option(
      "--pretrained", options.pretrained,
      "Folder of a LLaMA that --save or Hugging Face's transformers wrote, to go on from");
  pretrained->check(CLI::ExistingDirectory);
  for (const char* size : {"--hidden", "--layers", "--heads", "--key-value-heads"}) {
    pretrained->excludes(app.get_option(size));
  }
  app.add_option("--save", options.save, "Folder for the trained weights");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "llama: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT to predict the next character of a text, over as many processes as it is
// started with, validates it on the text's last tenth, and lets it write.
#include <models/generate.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/data_loader.h>
#include <trireme/data/text/character_tokenizer.h>
#include <trireme/data/text/tokens.h>
#include <trireme/optim/learning_rate_schedule.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/loss_monitor.h>
#include <trireme/train/writers.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>

namespace data = trireme::data;

struct Options {
  std::vector<std::string> texts;
  std::string folder;
  std::string prompt = "The ";
  std::int64_t epochs = 10;
  std::int64_t batch = 16;
  std::int64_t sequence = 64;
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  std::int64_t characters = 200;
  double top_p = 1;
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;
  double learning_rate = 1e-3;
};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--text", options.texts, "Files of text to learn from")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--run", options.folder,
                 "Folder for checkpoints and records; a second start goes on from there");
  app.add_option("--prompt", options.prompt, "What the network is to go on from")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the text")->capture_default_str();
  app.add_option("--batch", options.batch, "Sequences of each rank in a step")
      ->capture_default_str();
  app.add_option("--sequence", options.sequence, "Characters that the network sees at a time")
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "Width of the network")->capture_default_str();
  app.add_option("--layers", options.layers, "Depth of the network")->capture_default_str();
  app.add_option("--characters", options.characters, "Characters to write at the end")
      ->capture_default_str();
  app.add_option("--top-p", options.top_p,
                 "Draws from the likeliest characters only, which have this probability together")
      ->capture_default_str();
  app.add_option("--stages", options.stages,
                 "Cuts the network into so many stages, each on a rank of its own")
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "Batches that make one step")
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Highest learning rate")
      ->capture_default_str();
}

std::string read_all(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  return all;
}

// Sample i is the i-th run of `length` characters; its target is one character further on.
std::shared_ptr<const data::Dataset> sequences(const torch::Tensor& tokens, std::int64_t length) {
  const std::int64_t count = (tokens.numel() - 1) / length;
  if (count == 0) throw std::runtime_error("the text is shorter than ten sequences");
  return data::tensors({{"input", tokens.narrow(0, 0, count * length).view({count, length})},
                        {"target", tokens.narrow(0, 1, count * length).view({count, length})}});
}

// All ranks along `data`, or as many pipelines as there are ranks for.
trireme::Plan plan_for(const Options& options, std::int64_t ranks) {
  trireme::Plan plan;
  plan.micro_batches = options.micro_batches;
  if (options.stages > 1) {
    plan.mesh = {{"data", static_cast<int>(ranks / options.stages)},
                 {"pipe", static_cast<int>(options.stages)}};
  }
  return plan;
}

// Continues the prompt by characters that it draws.
std::string write(models::GPT& network, const data::CharacterTokenizer& characters,
                  const Options& options) {
  const torch::Tensor prompt = data::encode_to_tensor(characters, options.prompt).unsqueeze(0);
  const torch::Tensor tokens = models::generate(
      network, prompt,
      {.tokens = options.characters, .temperature = 0.8, .top_p = options.top_p, .seed = 1});
  return data::decode_tensor(characters, tokens);
}

void run(const Options& options) {
  const auto world = trireme::init();
  torch::manual_seed(1);

  const trireme::Plan plan = plan_for(options, world.size);
  const trireme::DataPart part = trireme::data_part(plan, world.group);

  const std::string text = read_all(options.texts);
  const data::CharacterTokenizer characters(text);
  const auto tokens = data::encode_to_tensor(characters, text);
  const std::int64_t split = tokens.numel() * 9 / 10;
  data::DataLoader training(sequences(tokens.narrow(0, 0, split), options.sequence));
  training.shuffle(1)
      .shard({.index = part.index, .count = part.count})
      .batch(options.batch, data::LastBatch::kDrop)
      .prefetch(2);
  data::DataLoader validation(
      sequences(tokens.narrow(0, split, tokens.numel() - split), options.sequence));
  validation
      .shard({.index = part.index, .count = part.count, .remainder = data::Remainder::kUneven})
      .batch(options.batch);

  models::GPT network(models::GPTOptions{.vocabulary = characters.vocabulary_size(),
                                         .sequence = options.sequence,
                                         .hidden = options.hidden,
                                         .layers = options.layers,
                                         .heads = 4,
                                         .dropout = 0.1});
  torch::optim::AdamW optimizer(network->parameters(), options.learning_rate);
  const auto loss = [&](const data::Batch& batch) {
    const auto logits = network->forward(batch["input"]);  // [sequences, characters, vocabulary]
    return trireme::CrossEntropy()(logits.flatten(0, 1), batch["target"].flatten());
  };
  trireme::Model model(loss, network.ptr(), optimizer,
                       {.group = world.group, .plan = plan, .clip_norm = 1.0, .deterministic = 1});

  const std::int64_t steps_in_epoch = training.batches() / options.micro_batches;
  const std::int64_t steps = options.epochs * steps_in_epoch;
  trireme::LearningRate rate(optimizer,
                             trireme::LearningRateSchedule::cosine(options.learning_rate, steps)
                                 .after_warm_up(steps / 20 + 1));
  trireme::LossMonitor monitor(std::max<std::int64_t>(1, steps_in_epoch / 5));
  trireme::Callbacks callbacks{rate, monitor};

  const trireme::checkpoint::SaveOptions save{.folder = options.folder, .prefix = "char_gpt"};
  std::optional<trireme::Checkpoint> checkpoint;
  std::optional<trireme::JsonlWriter> events;
  if (!options.folder.empty()) {
    callbacks.emplace_back(checkpoint.emplace(trireme::CheckpointOptions{.save = save}));
    callbacks.emplace_back(events.emplace(trireme::JsonlWriterOptions{.folder = options.folder}));
    if (const auto newest = trireme::checkpoint::latest(save.folder, save.prefix))
      model.resume(*newest);
  }

  const trireme::History history =
      model.fit(training, validation, {.epochs = options.epochs, .callbacks = callbacks});
  if (world.is_first()) {
    if (!history.epochs.empty()) {
      const double validated = history.epochs.back().evaluation->loss;
      std::cout << "validation loss " << validated << ", perplexity " << std::exp(validated)
                << " of " << characters.vocabulary_size() << " characters\n";
    }
    std::cout << write(network, characters, options) << std::endl;
  }
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on the characters of a text over one or more processes");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "char_gpt: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}

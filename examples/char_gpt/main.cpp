// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT, on request with mixtures of experts, to predict the next character of a text,
// over as many processes as it is started with. Validates it on the text's last tenth, and lets it
// write.
#include <models/generate.h>
#include <models/gpt.h>
#include <models/mixture.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/data_loader.h>
#include <trireme/data/text/character_tokenizer.h>
#include <trireme/data/text/tokens.h>
#include <trireme/optim/learning_rate_schedule.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/count_monitor.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/monitors.h>
#include <trireme/train/writers.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
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
  std::int64_t experts = 0;
  std::int64_t expert_ranks = 1;
  std::int64_t micro_batches = 1;
  double dropout = 0.1;
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
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--stages", options.stages,
                 "Cuts the network into so many stages, each on a rank of its own")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  auto* const experts = app.add_option(
      "--experts", options.experts, "Experts in every second block, in place of its MLP; 0: none");
  experts->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--expert-ranks", options.expert_ranks,
                 "Divides experts and sequences over so many ranks")
      ->needs(experts)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "Batches that make one step")
      ->capture_default_str();
  app.add_option("--dropout", options.dropout, "Share of activations that are left out")
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

// A GPT, or one with mixtures of experts.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  // Maps tokens [sequences, characters] to logits [sequences, characters, vocabulary].
  std::function<models::MixtureOutput(const torch::Tensor&)> forward;
};

Network network_for(const Options& options, std::int64_t vocabulary) {
  const models::GPTOptions sizes{.vocabulary = vocabulary,
                                 .sequence = options.sequence,
                                 .hidden = options.hidden,
                                 .layers = options.layers,
                                 .heads = 4,
                                 .dropout = options.dropout};
  if (options.experts == 0) {
    models::GPT gpt(sizes);
    return {gpt.ptr(), [gpt](const torch::Tensor& tokens) mutable {
              return models::MixtureOutput{.output = gpt(tokens), .balance_loss = {}};
            }};
  }
  models::MixtureGPT gpt(
      models::MixtureOptions{.gpt = sizes, .experts = options.experts, .counts_tokens = true});
  return {gpt.ptr(), [gpt](const torch::Tensor& tokens) mutable { return gpt(tokens); }};
}

// All ranks along `data`, or as many pipelines and groups of ranks with all experts as there are
// ranks for.
trireme::Plan plan_for(const Options& options, std::int64_t ranks,
                       const torch::nn::Module& network) {
  trireme::Plan plan;
  plan.micro_batches = options.micro_batches;
  plan.mesh = {{"data", static_cast<int>(ranks / (options.stages * options.expert_ranks))}};
  if (options.stages > 1) plan.mesh.push_back({"pipe", static_cast<int>(options.stages)});
  if (options.expert_ranks > 1) {
    plan.mesh.push_back({"expert", static_cast<int>(options.expert_ranks)});
    plan.layouts = trireme::expert_layouts(network);
  }
  plan.broadcast_buffers = false;  // each rank counts the tokens of its own sequences
  return plan;
}

// Continues the prompt by characters that it draws. Mixtures of experts keep no keys and values:
// each character is drawn from what the network thinks of the last `sequence`.
std::string write(const Network& network, const data::CharacterTokenizer& characters,
                  const Options& options) {
  const models::GenerationOptions how{
      .tokens = options.characters, .temperature = 0.8, .top_p = options.top_p, .seed = 1};
  torch::Tensor tokens = data::encode_to_tensor(characters, options.prompt).unsqueeze(0);
  if (const auto impl = std::dynamic_pointer_cast<models::GPTImpl>(network.module)) {
    models::GPT gpt(impl);
    return data::decode_tensor(characters, models::generate(gpt, tokens, how));
  }
  const torch::NoGradGuard no_gradients;
  network.module->eval();
  torch::manual_seed(how.seed);  // ranks that share experts must go on in the same way
  for (std::int64_t i = 0; i < how.tokens; ++i) {
    const std::int64_t seen = std::min(tokens.size(1), options.sequence);
    const auto logits =
        trireme::full(network.forward(tokens.narrow(1, tokens.size(1) - seen, seen)).output);
    const auto next =
        torch::multinomial(models::sampling_probabilities(logits.select(1, -1), how), 1);
    tokens = torch::cat({tokens, next}, 1);
  }
  return data::decode_tensor(characters, tokens);
}

void run(const Options& options) {
  const auto world = trireme::init();
  torch::manual_seed(1);

  const std::string text = read_all(options.texts);
  const data::CharacterTokenizer characters(text);
  const auto tokens = data::encode_to_tensor(characters, text);
  const Network network = network_for(options, characters.vocabulary_size());
  const trireme::Plan plan = plan_for(options, world.size, *network.module);
  const trireme::DataPart part = trireme::data_part(plan, world.group);

  // Ranks that share experts also share the sequences of a batch.
  const std::int64_t batch = options.batch * options.expert_ranks;
  const std::int64_t split = tokens.numel() * 9 / 10;
  data::DataLoader training(sequences(tokens.narrow(0, 0, split), options.sequence));
  training.shuffle(1)
      .shard({.index = part.index, .count = part.count})
      .batch(batch, data::LastBatch::kDrop)
      .prefetch(2);
  data::DataLoader validation(
      sequences(tokens.narrow(0, split, tokens.numel() - split), options.sequence));
  validation
      .shard({.index = part.index, .count = part.count, .remainder = data::Remainder::kUneven})
      .batch(batch);

  torch::optim::AdamW optimizer(network.module->parameters(), options.learning_rate);
  const auto loss = [&](const data::Batch& rows) {
    const auto [logits, balance_loss] = network.forward(rows["input"]);
    const auto error = trireme::CrossEntropy()(logits.flatten(0, 1), rows["target"].flatten());
    const bool is_balanced = balance_loss.defined() && network.module->is_training();
    return is_balanced ? error + 0.01 * balance_loss : error;
  };
  trireme::Model model(loss, network.module, optimizer,
                       {.group = world.group, .plan = plan, .clip_norm = 1.0, .deterministic = 1});

  const std::int64_t steps_in_epoch = training.batches() / options.micro_batches;
  const std::int64_t steps = options.epochs * steps_in_epoch;
  trireme::LearningRate rate(optimizer,
                             trireme::LearningRateSchedule::cosine(options.learning_rate, steps)
                                 .after_warm_up(steps / 20 + 1));
  trireme::LossMonitor monitor(std::max<std::int64_t>(1, steps_in_epoch / 5));
  trireme::Callbacks callbacks{rate, monitor};
  std::optional<trireme::CountMonitor> counts;
  if (options.experts > 0) {
    callbacks.emplace_back(counts.emplace(
        trireme::CountMonitorOptions{.buffers = {"*.tokens_taken", "*.tokens_dropped"}}));
  }

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
  }
  const std::string written = write(network, characters, options);
  if (world.is_first()) std::cout << written << std::endl;
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

// SPDX-License-Identifier: Apache-2.0
#include "examples/bert/pretraining.h"
#include "examples/option_checks.h"
#include <trireme/comm/collectives.h>
#include <trireme/data/text/make_bert_pairs.h>
#include <trireme/data/text/word_piece_training.h>
#include <trireme/optim/lamb.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

namespace examples {
namespace {

namespace data = trireme::data;

// The same as `trireme data bert --prose`.
void make_pairs(const PretrainingOptions& options) {
  const std::vector<std::filesystem::path> files(options.texts.begin(), options.texts.end());
  data::WordPieceTrainer trainer({.vocabulary_size = options.vocabulary});
  for (const auto& file : files) {
    for (const data::Document& document : data::read_documents(file, data::TextForm::kProse)) {
      for (const std::string& sentence : document) trainer.add(sentence);
    }
  }
  const std::filesystem::path folder = options.data;
  std::filesystem::create_directories(folder);
  // The folder's own vocabulary belongs to the pairs that it holds until it gets others.
  const std::filesystem::path vocabulary = folder / "new_vocab.txt";
  data::write_vocabulary(vocabulary, trainer.train());
  const data::MadeBertPairs made =
      data::make_bert_pairs(files, data::TextForm::kProse, vocabulary, folder,
                            {.sequence_length = options.sequence, .seed = 1});
  std::filesystem::remove(vocabulary);
  std::cout << made.pairs << " pairs of " << made.sentences << " sentences, " << made.random_pairs
            << " of them with a random second one" << std::endl;
}

}  // namespace

void add_options(CLI::App& app, PretrainingOptions& options) {
  app.add_option("--text", options.texts, "Files of prose to make the data of")
      ->check(CLI::ExistingFile);
  app.add_option("--data", options.data, "Folder of pairs of sentences (trireme data bert)")
      ->capture_default_str();
  app.add_option("--vocabulary", options.vocabulary, "Tokens of the vocabulary, with --text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the data")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Pairs of each rank in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sequence", options.sequence, "Tokens of a pair, with --text")
      ->check(CLI::Range(5, 1 << 20))
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "Width of the network")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", options.layers, "Depth of the network")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--heads", options.heads, "Attention heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "adamw or lamb")
      ->check(CLI::IsMember({"adamw", "lamb"}))
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Highest learning rate")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--clip-norm", options.clip_norm, "Largest norm of the gradients")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, dropout and the order of pairs")
      ->capture_default_str();
}

std::shared_ptr<const data::BertPairs> open_pairs(const PretrainingOptions& options,
                                                  const trireme::World& world) {
  check_divides({"--heads", options.heads}, {"--hidden", options.hidden});
  if (!options.texts.empty() && world.is_first()) make_pairs(options);
  trireme::comm::barrier(world.group);
  return data::bert_pairs(options.data);
}

models::BERTOptions network_options(const PretrainingOptions& options,
                                    const data::BertPairs& pairs) {
  return {.vocabulary = pairs.tokenizer().vocabulary_size(),
          .sequence = pairs.settings().sequence_length,
          .hidden = options.hidden,
          .layers = options.layers,
          .heads = options.heads,
          .next_sentence = true};
}

torch::Tensor pretraining_loss(models::BERT& network, const data::Batch& batch) {
  const auto logits = network->pretraining_logits(batch["tokens"], batch["token_types"],
                                                  batch["mask"].logical_not());
  const torch::Tensor& labels = batch["labels"];
  // The mean over the masked tokens, of which a small batch may have none.
  const auto masked = torch::cross_entropy_loss(logits.tokens.flatten(0, 1), labels.flatten(), {},
                                                at::Reduction::Sum, data::kIgnoredLabel) /
                      labels.ne(data::kIgnoredLabel).sum().clamp_min(1);
  return masked + torch::cross_entropy_loss(logits.next_sentence, batch["next_sentence"]);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& network,
                                                        const std::string& kind,
                                                        double learning_rate) {
  constexpr double kDecay = 0.01;
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> others;
  for (const auto& parameter : network.parameters()) {
    (parameter.dim() > 1 ? weights : others).push_back(parameter);
  }
  if (kind == "lamb") {
    return trireme::lamb({{.parameters = weights,
                           .options = {.learning_rate = learning_rate, .weight_decay = kDecay}},
                          {.parameters = others,
                           .options = {.learning_rate = learning_rate, .weight_decay = 0},
                           .adapts = false}});
  }
  using torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [parameters, decay] : {std::pair{weights, kDecay}, std::pair{others, 0.0}}) {
    groups.emplace_back(parameters, std::make_unique<AdamWOptions>(
                                        AdamWOptions(learning_rate).weight_decay(decay)));
  }
  return std::make_unique<torch::optim::AdamW>(std::move(groups), AdamWOptions(learning_rate));
}

trireme::LearningRateSchedule warm_up_and_decay(double highest, std::int64_t steps) {
  const std::int64_t warm_up = steps / 10 + 1;
  return trireme::LearningRateSchedule::linear(highest, 0,
                                               std::max<std::int64_t>(1, steps - warm_up))
      .after_warm_up(warm_up);
}

double loss_of_guessing_order(const data::BertPairs& pairs, std::int64_t count) {
  std::int64_t random = 0;
  for (std::int64_t index = 0; index < count; ++index) {
    random += pairs.get(index).back().item<std::int64_t>();
  }
  const double share = static_cast<double>(random) / static_cast<double>(count);
  if (share == 0 || share == 1) return 0;
  return -share * std::log(share) - (1 - share) * std::log(1 - share);
}

}  // namespace examples

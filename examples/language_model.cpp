// SPDX-License-Identifier: Apache-2.0
#include "examples/language_model.h"
#include <trireme/trireme.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace examples {
namespace data = trireme::data;
namespace {

std::string read_files(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file || std::filesystem::is_directory(path)) {
      throw trireme::DataError(path + " cannot be read", "give files of text by --text");
    }
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  if (all.empty()) throw trireme::DataError("the text is empty", "give files of text by --text");
  return all;
}

// Sample i is the i-th run of `length` tokens; its target is one token further on.
std::shared_ptr<const data::Dataset> sequences(const torch::Tensor& tokens, std::int64_t length) {
  const std::int64_t count = (tokens.numel() - 1) / length;
  if (count == 0) {
    throw trireme::UsageError(trireme::join_message("--sequence is ", length,
                                                    ", and a tenth of the text, for the "
                                                    "validation, has ",
                                                    tokens.numel(), " tokens"),
                              "give more text, or a shorter sequence");
  }
  return data::tensors({{"input", tokens.narrow(0, 0, count * length).view({count, length})},
                        {"target", tokens.narrow(0, 1, count * length).view({count, length})}});
}

}  // namespace

void add_options(CLI::App& app, LanguageOptions& options) {
  add_options(app, static_cast<TrainingOptions&>(options));
  app.add_option("--text", options.texts, "Files of text to learn from")->capture_default_str();
  app.add_option("--prompt", options.prompt, "What the network is to go on from")
      ->capture_default_str();
  add_number(app, "--sequence", options.sequence, "Tokens that the network sees at a time");
  add_number(app, "--hidden", options.hidden, "Width of the network");
  add_number(app, "--layers", options.layers, "Depth of the network");
  add_number(app, "--heads", options.heads, "Heads of attention");
  add_number(app, "--write", options.written, "Tokens to write at the end");
  app.add_option("--top-p", options.top_p,
                 "Draws from the likeliest tokens only, which have this probability together")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
}

Text read_text(const LanguageOptions& options, std::shared_ptr<const data::Tokenizer> tokenizer) {
  const std::string all = read_files(options.texts);
  if (!tokenizer) tokenizer = std::make_shared<data::CharacterTokenizer>(all);
  const torch::Tensor tokens = data::encode_to_tensor(*tokenizer, all);
  const torch::Tensor prompt = data::encode_to_tensor(*tokenizer, options.prompt);
  if (prompt.numel() == 0) {
    throw trireme::UsageError("--prompt is empty", "give a word or more to go on from");
  }
  const std::int64_t split = tokens.numel() * 9 / 10;
  return {
      .tokenizer = tokenizer,
      .prompt = prompt.unsqueeze(0),
      .training = sequences(tokens.narrow(0, 0, split), options.sequence),
      .validation = sequences(tokens.narrow(0, split, tokens.numel() - split), options.sequence)};
}

void train(trireme::Model& model, const Text& text, const LanguageOptions& options,
           trireme::Callbacks callbacks) {
  const auto training =
      training_batches(data::DataLoader(text.training).shuffle(options.seed), model, options.batch);
  const auto validation =
      evaluation_batches(data::DataLoader(text.validation), model, options.batch);
  TrainingOptions with_tokens = static_cast<const TrainingOptions&>(options);
  with_tokens.tokens_per_sample = options.sequence;
  const double loss = train(model, training, validation, with_tokens, std::move(callbacks)).loss;
  if (model.options().group.rank() != 0) return;
  std::cout << "validation loss " << loss << ", perplexity " << std::exp(loss) << " of "
            << text.tokenizer->vocabulary_size() << " tokens" << std::endl;
}

void copy_parameters(trireme::Model& model, torch::nn::Module& to) {
  model.gather_parameters();
  const torch::NoGradGuard no_gradients;
  trireme::checkpoint::TensorMap trained;
  for (const auto& entry : model.module().named_parameters()) {
    trained.emplace(entry.key(), entry.value().detach());
  }
  trained = trireme::checkpoint::full_tensors(trained);
  for (auto& entry : to.named_parameters()) entry.value().copy_(trained.at(entry.key()));
}

}  // namespace examples

// SPDX-License-Identifier: Apache-2.0
// What the examples of language models share: a text that is read as sequences of tokens, the
// training with validation, checkpoints and records, and the text that the network writes at the
// end.
#pragma once

#include "examples/training.h"
#include <models/generate.h>
#include <trireme/comm/world.h>
#include <trireme/data/text/tokenizer.h>
#include <trireme/data/text/tokens.h>

#include <torch/torch.h>

#include <iostream>
#include <memory>

namespace examples {

struct LanguageOptions : TrainingOptions {
  std::vector<std::string> texts{"/usr/share/common-licenses/GPL-3"};
  std::string prompt = "The ";
  std::int64_t sequence = 64;
  std::int64_t hidden = 128;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t written = 200;
  double top_p = 1;
};

void add_options(CLI::App& app, LanguageOptions& options);

/// A text as tokens. The last tenth is held back for the validation.
struct Text {
  std::shared_ptr<const trireme::data::Tokenizer> tokenizer;
  torch::Tensor prompt;  // [1, tokens]
  std::shared_ptr<const trireme::data::Dataset> training, validation;
};

/// Reads the files of the options. Without a tokenizer every character of them is a token. Throws
/// UsageError or DataError for a file that cannot be read, a text that is too short, and a prompt
/// that has no tokens.
Text read_text(const LanguageOptions& options,
               std::shared_ptr<const trireme::data::Tokenizer> tokenizer = nullptr);

/// Trains as in training.h, and prints the loss of the validation. Collective.
void train(trireme::Model& model, const Text& text, const LanguageOptions& options,
           trireme::Callbacks callbacks = {});

/// Copies the parameters that the ranks have trained, also where each has only parts of them, to a
/// network that was made with the same sizes. Collective.
void copy_parameters(trireme::Model& model, torch::nn::Module& to);

/// Prints on rank 0 how a decoder with whole parameters goes on from the prompt.
template <class Decoder>
void write(Decoder& decoder, const Text& text, const LanguageOptions& options,
           const trireme::World& world) {
  if (!world.is_first()) return;
  const torch::Tensor tokens = models::generate(
      decoder, text.prompt,
      {.tokens = options.written, .temperature = 0.8, .top_p = options.top_p, .seed = 1});
  std::cout << trireme::data::decode_tensor(*text.tokenizer, tokens) << std::endl;
}

}  // namespace examples

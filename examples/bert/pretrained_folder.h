// SPDX-License-Identifier: Apache-2.0
// A folder of a pre-trained BERT, as Hugging Face's package `transformers` saves and loads it:
// config.json, vocab.txt, tokenizer_config.json and model.safetensors.
#pragma once

#include <models/bert.h>
#include <trireme/comm/world.h>
#include <trireme/data/text/word_piece_tokenizer.h>

#include <filesystem>

namespace examples {

/// Writes the description of a network that is trained on pairs of sentences: everything but its
/// weights.
void write_description(const std::filesystem::path& folder, const models::BERTOptions& options,
                       const std::filesystem::path& vocabulary, bool lowercase);

/// Throws if the folder has a vocabulary other than this one: the numbers of its tokens would mean
/// something else to the network in it.
void check_same_vocabulary(const std::filesystem::path& folder,
                           const std::filesystem::path& vocabulary);

/// Writes model.safetensors on rank 0. Collective, since ranks may have parts of parameters.
void write_weights(const std::filesystem::path& folder, const torch::nn::Module& network,
                   const trireme::World& world);

/// Reads config.json. Throws if the network is one that models::BERT cannot be.
models::BERTOptions read_options(const std::filesystem::path& folder);

/// Reads the vocabulary, cased if tokenizer_config.json says so.
trireme::data::WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder);

/// Loads model.safetensors or, if there is none, the newest checkpoint of pre-training. The layer
/// of classes keeps its values if the folder has none.
void load_weights(const std::filesystem::path& folder, models::BERTClassifier& network);

}  // namespace examples

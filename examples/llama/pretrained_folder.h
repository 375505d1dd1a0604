// SPDX-License-Identifier: Apache-2.0
// A folder of a pre-trained LLaMA, as Hugging Face's package `transformers` saves and loads it:
// config.json, model.safetensors, and tokenizer.json or, of a network of characters,
// characters.json.
#pragma once

#include <models/llama.h>
#include <trireme/data/text/tokenizer.h>

#include <filesystem>
#include <memory>

namespace examples {

/// Reads characters.json, or a tokenizer.json of byte-level BPE.
std::shared_ptr<const trireme::data::Tokenizer> read_tokenizer(const std::filesystem::path& folder);

/// Reads config.json. Throws DataError if the network is one that models::LLaMA cannot be.
models::LLaMAOptions read_options(const std::filesystem::path& folder);

/// Loads model.safetensors.
void load_weights(const std::filesystem::path& folder, models::LLaMAImpl& network);

/// Writes the folder. A tokenizer other than one of characters is not written: it has its file
/// already.
void write_folder(const std::filesystem::path& folder, const models::LLaMAOptions& options,
                  const trireme::data::Tokenizer& tokenizer, const models::LLaMAImpl& network);

}  // namespace examples

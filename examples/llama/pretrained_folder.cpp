// SPDX-License-Identifier: Apache-2.0
#include "examples/json_file.h"
#include "examples/llama/pretrained_folder.h"
#include <models/pretrained.h>
#include <trireme/base/atomic_file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/data/text/bpe_tokenizer.h>
#include <trireme/data/text/character_tokenizer.h>

#include <string>

namespace examples {
namespace {

using nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kCharacters = "characters.json";

void expect_equal(const json& config, const char* name, const json& expected,
                  const std::filesystem::path& path) {
  const json value = config.value(name, expected);
  if (value == expected) return;
  throw trireme::DataError(
      path.string() + " has " + name + " " + value.dump() + ", expected " + expected.dump(),
      "give a model that models::LLaMA can be");
}

// The base of rotary positions is in an object of its own since version 5 of `transformers`.
double rotary_base(const json& config, const std::filesystem::path& path) {
  const json rotary = config.value("rope_parameters", json::object());
  expect_equal(rotary, "rope_type", "default", path);
  expect_equal(config, "rope_scaling", nullptr, path);
  return rotary.value("rope_theta", config.value("rope_theta", 10000.0));
}

}  // namespace

std::shared_ptr<const trireme::data::Tokenizer> read_tokenizer(
    const std::filesystem::path& folder) {
  using trireme::data::BpeTokenizer;
  using trireme::data::CharacterTokenizer;
  if (std::filesystem::exists(folder / kCharacters)) {
    return std::make_shared<CharacterTokenizer>(CharacterTokenizer::read(folder / kCharacters));
  }
  return std::make_shared<BpeTokenizer>(BpeTokenizer::read_json(folder / "tokenizer.json"));
}

models::LLaMAOptions read_options(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kConfig;
  const json config = read_json(path);
  expect_equal(config, "model_type", "llama", path);
  expect_equal(config, "hidden_act", "silu", path);
  expect_equal(config, "attention_bias", false, path);
  expect_equal(config, "mlp_bias", false, path);
  const auto number = [&](const char* name) { return number_in(config, name, path); };
  models::LLaMAOptions options{.vocabulary = number("vocab_size"),
                               .sequence = number("max_position_embeddings"),
                               .hidden = number("hidden_size"),
                               .layers = number("num_hidden_layers"),
                               .heads = number("num_attention_heads"),
                               .feed_forward = number("intermediate_size"),
                               .norm_epsilon = config.value("rms_norm_eps", 1e-6),
                               .rotary_base = rotary_base(config, path),
                               .tied = config.value("tie_word_embeddings", false)};
  if (config.contains("num_key_value_heads")) {
    options.key_value_heads = number("num_key_value_heads");
  }
  return options;
}

void load_weights(const std::filesystem::path& folder, models::LLaMAImpl& network) {
  models::load_hugging_face(network, models::Architecture::kLLaMA,
                            trireme::checkpoint::read_safetensors(folder / kWeights).tensors);
}

void write_folder(const std::filesystem::path& folder, const models::LLaMAOptions& options,
                  const trireme::data::Tokenizer& tokenizer, const models::LLaMAImpl& network) {
  std::filesystem::create_directories(folder);
  const json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", options.vocabulary},
                       {"max_position_embeddings", options.sequence},
                       {"hidden_size", options.hidden},
                       {"intermediate_size", options.feed_forward},
                       {"num_hidden_layers", options.layers},
                       {"num_attention_heads", options.heads},
                       {"num_key_value_heads", options.key_value_heads.value_or(options.heads)},
                       {"hidden_act", "silu"},
                       {"rms_norm_eps", options.norm_epsilon},
                       {"rope_theta", options.rotary_base},
                       {"tie_word_embeddings", options.tied}};
  trireme::write_file(folder / kConfig, config.dump(2) + "\n");
  trireme::checkpoint::write_safetensors(
      folder / kWeights, models::to_hugging_face(network, models::Architecture::kLLaMA),
      {{"format", "pt"}});
  if (const auto* characters = dynamic_cast<const trireme::data::CharacterTokenizer*>(&tokenizer)) {
    characters->write(folder / kCharacters);
  }
}

}  // namespace examples

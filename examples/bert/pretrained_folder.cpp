// SPDX-License-Identifier: Apache-2.0
#include "examples/bert/pretrained_folder.h"
#include "examples/json_file.h"
#include <models/pretrained.h>
#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/distributed_checkpoint.h>
#include <trireme/checkpoint/safetensors.h>

#include <fstream>
#include <iterator>
#include <string>

namespace examples {
namespace {

using nlohmann::json;

constexpr const char* kWeights = "model.safetensors";

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void check_same_vocabulary(const std::filesystem::path& folder,
                           const std::filesystem::path& vocabulary) {
  if (read_all(folder / "vocab.txt") == read_all(vocabulary)) return;
  throw trireme::DataError(
      trireme::join_message("the network in ", folder.string(),
                            " was trained with another vocabulary than ", vocabulary.string()),
      "go on with the data of its first start (--data without --text), or give --run another "
      "folder");
}

void write_description(const std::filesystem::path& folder, const models::BERTOptions& options,
                       const std::filesystem::path& vocabulary, bool lowercase) {
  std::filesystem::create_directories(folder);
  const json config = {
      {"architectures", {"BertForPreTraining"}}, {"model_type", "bert"},
      {"vocab_size", options.vocabulary},        {"max_position_embeddings", options.sequence},
      {"type_vocab_size", options.segments},     {"hidden_size", options.hidden},
      {"intermediate_size", 4 * options.hidden}, {"num_hidden_layers", options.layers},
      {"num_attention_heads", options.heads},    {"hidden_act", "gelu"},
      {"hidden_dropout_prob", options.dropout},  {"attention_probs_dropout_prob", options.dropout},
      {"layer_norm_eps", options.norm_epsilon}};
  trireme::write_file(folder / "config.json", config.dump(2) + "\n");
  trireme::write_file(
      folder / "tokenizer_config.json",
      json{{"tokenizer_class", "BertTokenizer"}, {"do_lower_case", lowercase}}.dump(2) + "\n");
  std::filesystem::copy_file(vocabulary, folder / "vocab.txt",
                             std::filesystem::copy_options::overwrite_existing);
}

void write_weights(const std::filesystem::path& folder, const torch::nn::Module& network,
                   const trireme::World& world) {
  const auto weights = trireme::checkpoint::full_tensors(
      models::to_hugging_face(network, models::Architecture::kBERT));
  if (!world.is_first()) return;
  trireme::checkpoint::write_safetensors(folder / kWeights, weights, {{"format", "pt"}});
}

models::BERTOptions read_options(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const json config = read_json(path);
  const auto number = [&](const char* name) { return number_in(config, name, path); };
  const models::BERTOptions options{.vocabulary = number("vocab_size"),
                                    .sequence = number("max_position_embeddings"),
                                    .segments = number("type_vocab_size"),
                                    .hidden = number("hidden_size"),
                                    .layers = number("num_hidden_layers"),
                                    .heads = number("num_attention_heads"),
                                    .dropout = config.value("hidden_dropout_prob", 0.1),
                                    .norm_epsilon = config.value("layer_norm_eps", 1e-12)};
  if (number("intermediate_size") != 4 * options.hidden ||
      config.value("hidden_act", "gelu") != "gelu") {
    throw trireme::DataError(
        path.string() + " has MLPs of another size or activation than models::BERT",
        "give a model whose intermediate_size is 4 times hidden_size, and whose hidden_act is "
        "gelu");
  }
  return options;
}

trireme::data::WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const bool lowercase =
      !std::filesystem::exists(path) || read_json(path).value("do_lower_case", true);
  return trireme::data::WordPieceTokenizer::read(folder / "vocab.txt", {.lowercase = lowercase});
}

void load_weights(const std::filesystem::path& folder, models::BERTClassifier& network) {
  if (std::filesystem::exists(folder / kWeights)) {
    models::load_hugging_face(*network, models::Architecture::kBERT,
                              trireme::checkpoint::read_safetensors(folder / kWeights).tensors,
                              {"classifier"});
    return;
  }
  const auto newest = trireme::checkpoint::latest(folder, "bert");
  if (!newest) {
    throw trireme::DataError(folder.string() + " has no " + kWeights + " and no checkpoint",
                             "give the --run folder of pre-training, or one of transformers");
  }
  const auto loaded = trireme::checkpoint::load_model(*newest, network, {.strict = false});
  for (const std::string& name : loaded.missing) {
    if (name.starts_with("classifier.")) continue;
    throw trireme::DataError(newest->string() + " lacks " + name,
                             "give a checkpoint of the same kind of network");
  }
}

}  // namespace examples

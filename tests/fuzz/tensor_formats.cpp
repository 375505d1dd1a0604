// SPDX-License-Identifier: Apache-2.0
#include "files.h"
#include "format.h"
#include <trireme/base/config/configuration.h>
#include <trireme/base/json_depth.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/index.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/data/audio/audio_file.h>
#include <trireme/data/cifar.h>
#include <trireme/data/csv.h>
#include <trireme/data/images/decode.h>
#include <trireme/data/npy.h>
#include <trireme/data/stream_state.h>
#include <trireme/data/text/make_bert_pairs.h>
#include <trireme/data/token_file.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/graph/show/table.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_config.h>

#include <ATen/ops/ones.h>
#include <nlohmann/json.hpp>
#include <tests/temporary_folder.h>

#include <filesystem>
#include <span>
#include <string>

namespace trireme::fuzz {
namespace {

void read_safetensors(std::string_view bytes) {
  checkpoint::read_safetensors(file_of("model.safetensors", bytes));
}

void read_index(std::string_view bytes) {
  file_of("checkpoint-1_1/index.json", bytes);
  checkpoint::read_index(folder() / "checkpoint-1_1");
}

// Puts the checksum into a text, in the form that readers demand, so that what comes behind the
// check is read too. Nothing for what has none.
std::string sealed(std::string_view bytes, int indent) {
  if (json_depth(bytes) > kDeepestJson) return {};
  nlohmann::json document = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return {};
  document.erase("crc32");
  try {
    const std::string text = document.dump();
    document["crc32"] = checkpoint::crc32_of(std::as_bytes(std::span(text)));
    return document.dump(indent) + "\n";
  } catch (const nlohmann::json::exception&) {  // no UTF-8
    return {};
  }
}

void read_all(const std::filesystem::path& checkpoint) {
  checkpoint::Reader reader(checkpoint);
  for (const auto& [section, tensors] : reader.index().sections) {
    for (const auto& [name, tensor] : tensors) reader.read(section, name);
  }
  checkpoint::find_damage(checkpoint);
  checkpoint::describe_checkpoint(checkpoint);
}

// A tensor as a whole, a complex one, and one in two boxes.
const std::filesystem::path& good_checkpoint() {
  static const std::filesystem::path saved = [] {
    const at::Tensor cut = at::ones({4, 3});
    const auto box = [&](std::int64_t begin) {
      return checkpoint::TensorPart{.section = "model",
                                    .name = "cut",
                                    .shape = {4, 3},
                                    .slice = checkpoint::Box{.begin = {begin, 0}, .size = {2, 3}},
                                    .local = cut.narrow(0, begin, 2)};
    };
    return checkpoint::save_parts(
        {.folder = folder() / "sealed"},
        {checkpoint::replicated("model", "t", at::ones({2, 3})),
         checkpoint::replicated("model", "rotary", at::ones({2}, at::kComplexFloat)), box(0),
         box(2)},
        {.epoch = 1, .step = 1}, comm::Group::self());
  }();
  return saved;
}

void read_sealed_index(std::string_view bytes) {
  const std::filesystem::path& path = good_checkpoint();
  test::write_file(path / "index.json", sealed(bytes, 1));
  read_all(path);
}

void read_state_of_format_1(std::string_view bytes) {
  static const auto path = [] {
    const std::filesystem::path made = folder() / "old-1_1";
    std::filesystem::create_directory(made);
    checkpoint::write_safetensors(made / "model.safetensors", {{"t", at::ones({2, 3})}});
    return made;
  }();
  test::write_file(path / "state.json", sealed(bytes, 2));
  read_all(path);
}

void read_order(std::string_view bytes) {
  file_of("ordered/demo-1_1/order", bytes);
  checkpoint::list_checkpoints(folder() / "ordered", "demo");
}

// The settings of a run, which may hold a schedule as text.
void read_plan(std::string_view bytes) {
  Plan plan;
  config::Configuration configuration(plan);
  configuration.read_text(bytes, "plan.toml");
  to_string(plan);
  plan_problems(plan, {.ranks = 4});
}

void read_graph(std::string_view bytes) { graph::operator_table(graph::parse_graph(bytes)); }

void read_stream_state(std::string_view bytes) { data::StreamState::from_text(bytes); }

void read_cifar10(std::string_view bytes) {
  file_of("cifar10/test_batch.bin", bytes);
  data::cifar10(folder() / "cifar10", data::Split::kTest);
}

void read_cifar100(std::string_view bytes) {
  file_of("cifar100/test.bin", bytes);
  data::cifar100(folder() / "cifar100", data::Split::kTest);
}

void read_npy(std::string_view bytes) { data::read_npy(file_of("array.npy", bytes)); }

void read_csv(std::string_view bytes) { data::csv(file_of("table.csv", bytes)); }

void read_token_file(std::string_view bytes) {
  const auto tokens = data::token_file(file_of("tokens.bin", bytes), 4);
  for (std::int64_t index = 0; index < tokens->size(); ++index) tokens->get(index);
}

// The description, then the places of the pairs; tokens and vocabulary are good ones.
void read_bert_pairs(std::string_view bytes) {
  static const auto path = [] {
    const auto vocabulary = file_of("bert/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
    const auto text = file_of("bert/text", "a b\nb a\n\nb b\na a\n");
    const std::filesystem::path made = folder() / "bert/pairs";
    data::make_bert_pairs({text}, data::TextForm::kSentences, vocabulary, made,
                          {.sequence_length = 16, .static_masking = true});
    return made;
  }();
  const auto [description, places] = two_files(bytes);
  test::write_file(path / "bert.json", description);
  test::write_file(path / "pairs.npy", places);
  const auto pairs = data::bert_pairs(path);
  for (std::int64_t index = 0; index < pairs->size(); ++index) pairs->get(index);
}

// A fuzzer is to find defects, not large images.
void read_image(std::string_view bytes) {
  data::decode_image(std::as_bytes(std::span(bytes)),
                     {.max_pixels = 1 << 16, .max_progressive_pixels = 1 << 12});
}

void read_audio(std::string_view bytes) {
  data::read_audio(file_of("sound.wav", bytes), {.max_samples = 1 << 16});
}

}  // namespace

std::vector<Format> tensor_formats() {
  return {{"safetensors", read_safetensors},
          {"index", read_index},
          {"sealed_index", read_sealed_index},
          {"state_of_format_1", read_state_of_format_1},
          {"order", read_order},
          {"plan", read_plan},
          {"graph", read_graph},
          {"stream_state", read_stream_state},
          {"cifar10", read_cifar10},
          {"cifar100", read_cifar100},
          {"npy", read_npy},
          {"csv", read_csv},
          {"token_file", read_token_file},
          {"bert_pairs", read_bert_pairs},
          {"image", read_image},
          {"audio", read_audio}};
}

}  // namespace trireme::fuzz

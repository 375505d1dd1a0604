// SPDX-License-Identifier: Apache-2.0
#include "examples/bert/classify.h"
#include "examples/bert/pretrained_folder.h"
#include "examples/bert/pretraining.h"
#include <trireme/data/dataset_views.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <set>

namespace examples {
namespace {

namespace data = trireme::data;

struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::string> labels;
  std::vector<std::string> classes;  // The labels, each once, sorted.
};

LabelledTexts read_lines(const std::string& path) {
  LabelledTexts read;
  std::ifstream file(path);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos || tab == 0 || tab + 1 == line.size()) {
      throw trireme::DataError(
          path + ": line " + std::to_string(number) + " is not a label, a tab and a text",
          "write one label<TAB>text per line");
    }
    read.labels.push_back(line.substr(0, tab));
    read.texts.push_back(line.substr(tab + 1));
  }
  const std::set<std::string> classes(read.labels.begin(), read.labels.end());
  read.classes.assign(classes.begin(), classes.end());
  if (classes.size() < 2) {
    throw trireme::DataError(
        path + " has " + std::to_string(classes.size()) + " different labels, expected 2 or more",
        "give texts of every class");
  }
  return read;
}

// [CLS] text [SEP], cut or padded to the length of the network, in a random order of lines.
std::shared_ptr<const data::Dataset> samples_of(const LabelledTexts& read,
                                                const data::WordPieceTokenizer& tokenizer,
                                                std::int64_t length) {
  const auto number_of = [&](const char* name) { return tokenizer.find(name).value(); };
  const auto rows = static_cast<std::int64_t>(read.texts.size());
  auto tokens = torch::full({rows, length}, number_of("[PAD]"), torch::kLong);
  auto labels = torch::empty({rows}, torch::kLong);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<std::size_t>(row);
    std::vector<std::int64_t> text = tokenizer.encode_plain(read.texts[index]);
    text.resize(std::min(text.size(), static_cast<std::size_t>(length - 2)));
    text.insert(text.begin(), number_of("[CLS]"));
    text.push_back(number_of("[SEP]"));
    tokens[row].narrow(0, 0, std::ssize(text)).copy_(torch::tensor(text));
    labels[row] = std::ranges::lower_bound(read.classes, read.labels[index]) - read.classes.begin();
  }
  const auto order =
      torch::randperm(rows, at::detail::createCPUGenerator(/*seed=*/1), torch::kLong);
  return data::tensors(
      {{"tokens", tokens.index_select(0, order)}, {"label", labels.index_select(0, order)}});
}

// Finds padding by its token, so that the network has one input.
struct PaddedClassifierImpl : torch::nn::Module {
  PaddedClassifierImpl(models::BERTClassifier network, std::int64_t padding_token)
      : bert(register_module("bert", std::move(network))), padding(padding_token) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    return bert(tokens, torch::Tensor(), tokens.eq(padding));
  }
  models::BERTClassifier bert;
  std::int64_t padding;
};
TORCH_MODULE(PaddedClassifier);

}  // namespace

void classify(const ClassifyOptions& options) {
  const auto world = trireme::init();
  torch::manual_seed(1);
  const models::BERTOptions sizes = read_options(options.from);
  const data::WordPieceTokenizer tokenizer = read_tokenizer(options.from);
  const LabelledTexts read = read_lines(options.file);
  const auto samples = samples_of(read, tokenizer, sizes.sequence);
  const std::int64_t tested = std::max<std::int64_t>(1, samples->size() / 5);
  auto training = data::DataLoader(data::skip(samples, tested))
                      .shuffle(1)
                      .batch(options.batch, data::LastBatch::kDrop);
  const auto test = data::DataLoader(data::take(samples, tested)).batch(options.batch);

  models::BERTClassifier network(sizes, std::ssize(read.classes));
  load_weights(options.from, network);
  PaddedClassifier padded(network, tokenizer.find("[PAD]").value());
  const auto optimizer = make_optimizer(*padded, "adamw", options.learning_rate);
  trireme::Model model(padded, trireme::CrossEntropy(), *optimizer,
                       {.group = world.group, .clip_norm = 1.0, .deterministic = 1});
  const std::int64_t steps =
      options.epochs * std::max<std::int64_t>(1, training.batches() / world.size);
  trireme::LearningRate rate(*optimizer, examples::warm_up_and_decay(options.learning_rate, steps));
  model.train(options.epochs, training, {rate});
  const trireme::Evaluation evaluation = model.evaluate(test);
  if (world.is_first()) {
    std::cout << "accuracy " << 100 * evaluation.accuracy.value() << " % of " << evaluation.samples
              << " texts in " << read.classes.size() << " classes" << std::endl;
  }
}

}  // namespace examples

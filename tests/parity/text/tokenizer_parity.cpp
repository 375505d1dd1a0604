// SPDX-License-Identifier: Apache-2.0
// Encodes texts for tokenizer_parity.py: reads a list of texts as JSON from standard input and
// prints for each the tokens and what they decode to.
//
//   tokenizer_parity bpe|word_piece TOKENIZER.JSON
//   tokenizer_parity bpe VOCAB.JSON MERGES.TXT
//   tokenizer_parity vocabulary_cased|vocabulary_uncased VOCAB.TXT
//
// or trains a vocabulary of WordPiece on them and prints its tokens:
//
//   tokenizer_parity train_cased|train_uncased TOKENS
#include <trireme/data/text/bpe_tokenizer.h>
#include <trireme/data/text/word_piece_tokenizer.h>
#include <trireme/data/text/word_piece_training.h>

#include <nlohmann/json.hpp>

#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

using trireme::data::BpeTokenizer;
using trireme::data::Tokenizer;
using trireme::data::WordPieceTokenizer;

std::unique_ptr<const Tokenizer> read(const std::string& kind,
                                      const std::vector<std::string>& files) {
  if (kind == "word_piece")
    return std::make_unique<WordPieceTokenizer>(WordPieceTokenizer::read_json(files.at(0)));
  if (kind != "bpe") {
    return std::make_unique<WordPieceTokenizer>(
        WordPieceTokenizer::read(files.at(0), {.lowercase = kind == "vocabulary_uncased"}));
  }
  return std::make_unique<BpeTokenizer>(files.size() == 1
                                            ? BpeTokenizer::read_json(files.at(0))
                                            : BpeTokenizer::read(files.at(0), files.at(1)));
}

std::vector<std::string> train(bool lowercase, const std::string& size) {
  trireme::data::WordPieceTrainer trainer(
      {.vocabulary_size = std::stoll(size), .tokenizer = {.lowercase = lowercase}});
  for (const auto& text : nlohmann::json::parse(std::cin)) trainer.add(text.get<std::string>());
  return trainer.train();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.at(0).starts_with("train")) {
    const bool lowercase = arguments[0] == "train_uncased";
    std::cout << nlohmann::json(train(lowercase, arguments.at(1))).dump() << '\n';
    return 0;
  }
  const auto tokenizer = read(arguments.at(0), {arguments.begin() + 1, arguments.end()});
  nlohmann::json results = nlohmann::json::array();
  for (const auto& element : nlohmann::json::parse(std::cin)) {
    const auto text = element.get<std::string>();
    const auto tokens = tokenizer->encode(text);
    results.push_back({{"tokens", tokens}, {"text", tokenizer->decode(tokens)}});
  }
  std::cout << results.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

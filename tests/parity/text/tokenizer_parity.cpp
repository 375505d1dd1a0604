// SPDX-License-Identifier: Apache-2.0
// Encodes texts for tokenizer_parity.py: reads a list of texts as JSON from standard input and
// prints for each the tokens and whether they decode to the text.
#include <trireme/data/text/bpe_tokenizer.h>

#include <nlohmann/json.hpp>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  using trireme::data::BpeTokenizer;
  const std::vector<std::string> files(argv + 1, argv + argc);
  const BpeTokenizer tokenizer = files.size() == 1 ? BpeTokenizer::read_json(files.at(0))
                                                   : BpeTokenizer::read(files.at(0), files.at(1));
  nlohmann::json results = nlohmann::json::array();
  for (const auto& element : nlohmann::json::parse(std::cin)) {
    const auto text = element.get<std::string>();
    const auto tokens = tokenizer.encode(text);
    results.push_back({{"tokens", tokens}, {"text", tokenizer.decode(tokens)}});
  }
  std::cout << results.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

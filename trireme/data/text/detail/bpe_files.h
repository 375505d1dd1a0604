// SPDX-License-Identifier: Apache-2.0
// Reads the files of byte-level BPE vocabularies. docs/formats/vocabularies.md describes them.
#pragma once

#include <trireme/data/text/detail/byte_pairs.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/vocabulary.h>
#include <trireme/data/text/detail/word_pattern.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data::detail {

/// The content of the files of a BPE vocabulary.
struct BpeRecipe {
  explicit BpeRecipe(std::string file) : vocabulary(std::move(file)) {}

  Vocabulary vocabulary;              ///< The tokens and their numbers.
  BytePairs pairs;                    ///< The merges.
  std::vector<WordPattern> patterns;  ///< Each splits the words of the one before.
  std::vector<SpecialToken> added;    ///< The tokens that are recognized by their names.
  bool adds_space = false;  ///< A space is added before a text that does not begin with one.
  bool prefers_whole_words = false;  ///< A word that is in the vocabulary is not merged.
};

/// Reads the files of GPT-2. Throws DataError like BpeTokenizer::read.
BpeRecipe read_gpt2_files(const std::filesystem::path& vocabulary,
                          const std::filesystem::path& merges,
                          const std::vector<std::string>& special_tokens);

/// Reads a tokenizer.json. Throws DataError like BpeTokenizer::read_json.
BpeRecipe read_tokenizer_json(const std::filesystem::path& path);

}  // namespace trireme::data::detail

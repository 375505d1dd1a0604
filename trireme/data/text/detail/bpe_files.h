// SPDX-License-Identifier: Apache-2.0
// The files of byte-level BPE vocabularies. docs/formats/vocabularies.md has their form.
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

/// All that such files say.
struct BpeRecipe {
  explicit BpeRecipe(std::string file) : vocabulary(std::move(file)) {}

  Vocabulary vocabulary;
  BytePairs pairs;
  std::vector<WordPattern> patterns;  // each cuts the words of the one before
  std::vector<SpecialToken> added;
  bool adds_space = false;           // before a text that does not begin with one
  bool prefers_whole_words = false;  // a word in the vocabulary is not merged
};

/// Throws DataError as BpeTokenizer::read does.
BpeRecipe read_gpt2_files(const std::filesystem::path& vocabulary,
                          const std::filesystem::path& merges,
                          const std::vector<std::string>& special_tokens);

/// Throws DataError as BpeTokenizer::read_json does.
BpeRecipe read_tokenizer_json(const std::filesystem::path& path);

}  // namespace trireme::data::detail

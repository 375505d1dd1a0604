// SPDX-License-Identifier: Apache-2.0
// Reads the files of WordPiece vocabularies. docs/formats/vocabularies.md describes them.
#pragma once

#include <trireme/data/text/detail/bert_text.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/vocabulary.h>
#include <trireme/data/text/word_piece_tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data::detail {

/// The content of the files of a WordPiece vocabulary, completed by the options.
struct WordPieceRecipe {
  explicit WordPieceRecipe(std::string file) : vocabulary(std::move(file)) {}

  Vocabulary vocabulary;              ///< The tokens and their numbers.
  BertTextOptions text;               ///< The normalization of texts.
  std::vector<SpecialToken> added;    ///< The tokens that are recognized by their names.
  std::int64_t unknown = 0;           ///< The token for words that cannot be split.
  std::string prefix = "##";          ///< The prefix of tokens that continue a word.
  std::int64_t longest = 100;         ///< The maximum number of characters of a word.
  std::string decoder_prefix = "##";  ///< The prefix that decode() removes.
  bool cleans_up = true;  ///< decode() puts punctuation directly after the word before it.
};

/// Reads a vocab.txt. Throws like WordPieceTokenizer::read.
WordPieceRecipe read_vocabulary_txt(const std::filesystem::path& vocabulary,
                                    const WordPieceOptions& options);

/// Reads a tokenizer.json. Throws like WordPieceTokenizer::read_json.
WordPieceRecipe read_word_piece_json(const std::filesystem::path& path);

}  // namespace trireme::data::detail

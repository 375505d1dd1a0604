// SPDX-License-Identifier: Apache-2.0
// The files of WordPiece vocabularies. docs/formats/vocabularies.md has their form.
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

/// All that such files, or the options beside them, say.
struct WordPieceRecipe {
  explicit WordPieceRecipe(std::string file) : vocabulary(std::move(file)) {}

  Vocabulary vocabulary;
  BertTextOptions text;
  std::vector<SpecialToken> added;
  std::int64_t unknown = 0;    // the number of the token for words that cannot be cut
  std::string prefix = "##";   // of tokens that go on with a word
  std::int64_t longest = 100;  // characters of a word that is cut
  std::string decoder_prefix = "##";
  bool cleans_up = true;  // decode() puts punctuation next to the word before it
};

/// Throws as WordPieceTokenizer::read does.
WordPieceRecipe read_vocabulary_txt(const std::filesystem::path& vocabulary,
                                    const WordPieceOptions& options);

/// Throws as WordPieceTokenizer::read_json does.
WordPieceRecipe read_word_piece_json(const std::filesystem::path& path);

}  // namespace trireme::data::detail

// SPDX-License-Identifier: Apache-2.0
// Trains the vocabulary of a WordPieceTokenizer on text. Like the trainer of the Python package
// `tokenizers`, it merges the most frequent pair of tokens again and again (Sennrich, Haddow,
// Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016), with tokens that
// continue a word written with `##`.
#pragma once

#include <trireme/data/text/word_piece_tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Options of WordPieceTrainer.
struct WordPieceTrainingOptions {
  /// The maximum number of tokens, with the special ones.
  std::int64_t vocabulary_size = 8192;
  /// Pairs of tokens that occur less often are not merged.
  std::int64_t minimum_count = 2;
  /// The maximum number of different characters. Words with rarer ones are left out.
  std::int64_t most_characters = 1000;
  /// How texts become words, and the special tokens, which come first in the vocabulary.
  WordPieceOptions tokenizer{};
};

/// Counts the words of texts and makes a vocabulary of them. The result depends only on the texts
/// and options, not on their order. Not thread-safe.
///
///     WordPieceTrainer trainer({.vocabulary_size = 30000});
///     for (const std::string& text : texts) trainer.add(text);
///     write_vocabulary("vocab.txt", trainer.train());
class WordPieceTrainer {
 public:
  /// Throws UsageError if a number is below 1.
  explicit WordPieceTrainer(WordPieceTrainingOptions options);
  ~WordPieceTrainer();

  /// Counts the words of a text. The texts themselves are not kept.
  void add(std::string_view text);

  /// Returns the tokens in the order of their numbers: the special tokens, the characters, then
  /// merged tokens. Of pairs that are equally frequent, the first by its bytes is merged first.
  /// There are fewer tokens than asked for if no pair is frequent enough.
  /// @throws DataError if no text had a word.
  /// @throws UsageError if the characters alone are more than the vocabulary may have.
  std::vector<std::string> train() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a vocabulary as BERT's vocab.txt. Throws CheckpointError if the file cannot be written.
void write_vocabulary(const std::filesystem::path& path, const std::vector<std::string>& tokens);

}  // namespace trireme::data

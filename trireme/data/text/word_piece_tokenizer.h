// SPDX-License-Identifier: Apache-2.0
// WordPiece with vocabularies that exist: BERT's vocab.txt, and the tokenizer.json of Hugging Face.
// docs/formats/vocabularies.md says what of them is read.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// What vocab.txt does not say; the defaults are those of uncased BERT. A cased or Chinese one's
/// texts are not lower-cased: `{.lowercase = false}`.
struct WordPieceOptions {
  bool lowercase = true;
  /// Takes the marks off letters. As `lowercase` unless it is given.
  std::optional<bool> strip_accents = std::nullopt;
  bool clean_text = true;            ///< leaves control characters out
  bool handle_chinese_chars = true;  ///< makes each Chinese character a word
  std::string unknown_token = "[UNK]";
  /// Names in the vocabulary that encode() looks for.
  std::vector<std::string> special_tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  std::int64_t longest_word = 100;  ///< characters; a longer word is unknown
};

/// Cuts a text at white space and punctuation into words, and each word into the longest tokens
/// there are, from its beginning on; those that go on with a word are `##` and more in the
/// vocabulary. A word that cannot be cut whole is one unknown token. The numbers are those of the
/// Python package `tokenizers`; bytes that are not UTF-8 are left out. A cheap value.
///
///     const auto tokenizer = WordPieceTokenizer::read("vocab.txt");
///     const std::vector<std::int64_t> tokens = tokenizer.encode("[CLS] Hello world! [SEP]");
class WordPieceTokenizer final : public Tokenizer {
 public:
  /// Reads BERT's form: one token in each line, numbered from 0.
  /// Throws DataError that names the file where it is missing or empty, its line that is not UTF-8,
  /// and the unknown or special token that it does not have; UsageError for a longest word below 1.
  static WordPieceTokenizer read(const std::filesystem::path& vocabulary,
                                 const WordPieceOptions& options = {});

  /// Reads a tokenizer.json of WordPiece, as BERT and others have it. Its added tokens are looked
  /// for in texts, by encode_plain() those alone that are not special. What it puts around a text
  /// (`post_processor`) is left out. Throws DataError as above, and where the file asks for
  /// something else: another model, normalizer, pre_tokenizer or decoder.
  static WordPieceTokenizer read_json(const std::filesystem::path& tokenizer);

  /// Never throws DataError: what has no token is unknown.
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;

  /// Returns the words with a space between them, and `.`, `?`, `!` and `,` next to the word
  /// before: not the text, of which white space, accents, capitals and unknown words are lost.
  std::string decode(std::span<const std::int64_t> tokens) const override;

  /// Tokens that go on with a word are found by their name in the vocabulary, such as `##ing`.
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  class Engine;
  explicit WordPieceTokenizer(std::shared_ptr<const Engine> engine);

  std::shared_ptr<const Engine> engine_;
};

}  // namespace trireme::data

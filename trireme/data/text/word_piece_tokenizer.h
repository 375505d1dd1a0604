// SPDX-License-Identifier: Apache-2.0
// WordPiece with existing vocabularies: BERT's vocab.txt, or Hugging Face's tokenizer.json.
// docs/formats/vocabularies.md describes which parts of these files are supported.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Settings that vocab.txt does not contain. The defaults are those of uncased BERT. For cased and
/// Chinese models use `{.lowercase = false}`.
struct WordPieceOptions {
  /// Converts texts to lower case.
  bool lowercase = true;
  /// Removes accents from letters. By default the same as `lowercase`.
  std::optional<bool> strip_accents = std::nullopt;
  /// Removes control characters.
  bool clean_text = true;
  /// Makes each Chinese character a word.
  bool handle_chinese_chars = true;
  /// The token for words that cannot be split into tokens.
  std::string unknown_token = "[UNK]";
  /// Tokens of the vocabulary that encode() recognizes by their names.
  std::vector<std::string> special_tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  /// The maximum number of characters of a word; a longer word becomes the unknown token.
  std::int64_t longest_word = 100;
};

/// Splits a text into words at white space and punctuation, and each word into the longest possible
/// tokens from its beginning on.
///
/// Tokens that continue a word begin with `##` in the vocabulary. A word that cannot be split
/// completely becomes one unknown token. The token numbers are those of the Python package
/// `tokenizers`; bytes that are not UTF-8 are dropped. Cheap to copy.
///
///     const auto tokenizer = WordPieceTokenizer::read("vocab.txt");
///     const std::vector<std::int64_t> tokens = tokenizer.encode("[CLS] Hello world! [SEP]");
class WordPieceTokenizer final : public Tokenizer {
 public:
  /// Reads BERT's vocab.txt: one token in each line, numbered from 0.
  /// @throws DataError with the file if it is missing or empty, a line is not UTF-8, or the unknown
  /// token or a special token is not in it.
  /// @throws UsageError if the longest word is below 1.
  static WordPieceTokenizer read(const std::filesystem::path& vocabulary,
                                 const WordPieceOptions& options = {});

  /// Reads a tokenizer.json of WordPiece, such as that of BERT.
  ///
  /// encode() recognizes the added tokens of the file by their names. encode_plain() recognizes
  /// only those that are not special. Tokens that the file adds around a text (`post_processor`)
  /// are not added.
  /// @throws DataError like read(), and if the file needs something that is not supported: another
  /// model, normalizer, pre_tokenizer or decoder.
  static WordPieceTokenizer read_json(const std::filesystem::path& tokenizer);

  /// Returns the tokens of `text`. Words without tokens become the unknown token, so this never
  /// throws DataError.
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;

  /// Returns the words with spaces between them, and `.`, `?`, `!` and `,` directly after the word
  /// before.
  ///
  /// The result is not the original text: its white space, accents, capitals and unknown words are
  /// lost.
  std::string decode(std::span<const std::int64_t> tokens) const override;

  /// Returns the number of a token, or nullopt. Tokens that continue a word are found by their name
  /// in the vocabulary, such as `##ing`.
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  class Engine;
  explicit WordPieceTokenizer(std::shared_ptr<const Engine> engine);

  std::shared_ptr<const Engine> engine_;
};

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// Byte-level byte pair encoding with existing vocabularies: the two files of GPT-2, or Hugging
// Face's tokenizer.json. docs/formats/vocabularies.md describes which parts of these files are
// supported.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// Splits a text into words by a regular expression and merges the bytes of each word, pair by
/// pair, into tokens.
///
/// For text in UTF-8, the token numbers are those of the Python packages `tokenizers` and
/// `tiktoken`. Bytes that are not UTF-8 are words of their own, so decode() returns any text
/// unchanged. Frequent words are cached. Cheap to copy.
///
///     const auto tokenizer = BpeTokenizer::read("vocab.json", "merges.txt", {"<|endoftext|>"});
///     const std::vector<std::int64_t> tokens = tokenizer.encode("Hello world<|endoftext|>");
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads the files of GPT-2.
  /// @param vocabulary a JSON object with the number of each token.
  /// @param merges one line with two tokens for each merge.
  /// @param special_tokens tokens of the vocabulary that encode() recognizes by their names.
  /// @throws DataError with the file, and the line or token, if
  /// - a file is missing or damaged,
  /// - a number or token is there twice, or
  /// - a merge or special token is not in the vocabulary.
  static BpeTokenizer read(const std::filesystem::path& vocabulary,
                           const std::filesystem::path& merges,
                           const std::vector<std::string>& special_tokens = {});

  /// Reads a tokenizer.json of byte-level BPE, such as those of GPT-2, RoBERTa and Llama 3.
  ///
  /// encode() recognizes the added tokens of the file by their names. encode_plain() recognizes
  /// only those that are not special. Tokens that the file adds around a text (`post_processor`)
  /// are not added.
  /// @throws DataError like read(), and if the file needs something that is not supported: another
  /// model, a normalizer or an unknown pre_tokenizer.
  static BpeTokenizer read_json(const std::filesystem::path& tokenizer);

  /// Returns the tokens of `text`. Throws DataError if a byte of the text has no token; the
  /// vocabularies named above have one for every byte.
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  class Engine;
  explicit BpeTokenizer(std::shared_ptr<const Engine> engine);

  std::shared_ptr<const Engine> engine_;
};

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// Byte-level byte pair encoding with vocabularies that exist: GPT-2's two files, and the
// tokenizer.json of Hugging Face. docs/formats/vocabularies.md says what of them is read.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// Cuts a text into words by a regular expression and merges the bytes of each word, pair after
/// pair, into tokens. The numbers are those of the Python packages `tokenizers` and `tiktoken` for
/// text in UTF-8; other bytes are words of their own, so that every text comes back from decode().
/// Common words are remembered. A cheap value.
///
///     const auto tokenizer = BpeTokenizer::read("vocab.json", "merges.txt", {"<|endoftext|>"});
///     const std::vector<std::int64_t> tokens = tokenizer.encode("Hello world<|endoftext|>");
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads GPT-2's form: numbers by token as JSON, and a line with two tokens for each merge.
  /// @param special_tokens names in the vocabulary that encode() looks for.
  /// Throws DataError that names the file, and the line or token, where one is missing or damaged,
  /// a number or token is there twice, or a merge or special token is of tokens that are not in the
  /// vocabulary.
  static BpeTokenizer read(const std::filesystem::path& vocabulary,
                           const std::filesystem::path& merges,
                           const std::vector<std::string>& special_tokens = {});

  /// Reads a tokenizer.json of byte-level BPE, as GPT-2, RoBERTa, Llama 3 and others have it. Its
  /// added tokens are looked for in texts, by encode_plain() those alone that are not special. What
  /// it puts around a text (`post_processor`) is left out. Throws DataError as above, and where the
  /// file asks for something else: another model, a normalizer, an unknown pre_tokenizer.
  static BpeTokenizer read_json(const std::filesystem::path& tokenizer);

  /// Throws DataError where a byte of the text has no token, which the vocabularies named above
  /// have for all.
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

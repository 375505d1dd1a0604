// SPDX-License-Identifier: Apache-2.0
// The interface of tokenizers, which convert text to numbers and back. byte_tokenizer.h,
// character_tokenizer.h, bpe_tokenizer.h (GPT-2, Llama 3) and word_piece_tokenizer.h (BERT)
// implement it. None of them needs LibTorch; tokens.h converts their numbers to tensors and files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Converts text to token numbers, which count from 0, and back. Const methods may be called
/// concurrently.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the tokens of `text`.
  ///
  /// The name of a special token in the text, such as `<|endoftext|>`, becomes that token. Nothing
  /// is added at the beginning or end. Throws DataError with the offset if a byte or character has
  /// no token.
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;

  /// Returns the tokens of `text`, with names of special tokens treated as ordinary text. Use it
  /// for text from others.
  virtual std::vector<std::int64_t> encode_plain(std::string_view text) const = 0;

  /// Returns the concatenated bytes of the tokens.
  ///
  /// Some of the tokens of a text may end within a character. WordPiece puts spaces between words.
  /// Throws UsageError with position and number if a number is not a token.
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;

  /// Returns the number of the token with these bytes, or of the special token with this name;
  /// nullopt if there is none.
  virtual std::optional<std::int64_t> find(std::string_view text) const = 0;

  /// Returns the largest token number plus one: the number of rows that an embedding needs.
  virtual std::int64_t vocabulary_size() const = 0;

 protected:
  /// Only derived classes can be constructed, copied and assigned.
  Tokenizer() = default;
  /// Copies a tokenizer.
  Tokenizer(const Tokenizer&) = default;
  /// Assigns a tokenizer.
  Tokenizer& operator=(const Tokenizer&) = default;
};

}  // namespace trireme::data

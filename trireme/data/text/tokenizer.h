// SPDX-License-Identifier: Apache-2.0
// From text to numbers and back. byte_tokenizer.h has one token for each byte,
// character_tokenizer.h one for each character of a text, bpe_tokenizer.h the vocabularies of
// GPT-2, Llama 3 and their like, word_piece_tokenizer.h those of BERT. None of them needs LibTorch;
// tokens.h brings their numbers into tensors and files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Tokens are numbered from 0. Const methods may be called concurrently.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the tokens of `text`. Where it has the name of a special token, such as
  /// `<|endoftext|>`, that token stands for it. Nothing is added, neither at the beginning nor at
  /// the end. Throws DataError that names the offset where no token stands for a byte or character.
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;

  /// The same, with names of special tokens taken as ordinary text: for what others have written.
  virtual std::vector<std::int64_t> encode_plain(std::string_view text) const = 0;

  /// Returns the bytes that the tokens stand for, one after the other. Part of a text's tokens may
  /// be part of a character. WordPiece puts spaces between words. Throws UsageError that names
  /// place and number of one that is none.
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;

  /// Returns the number of the token that stands for these bytes, or of the special token of this
  /// name; nothing where there is none.
  virtual std::optional<std::int64_t> find(std::string_view text) const = 0;

  /// Returns one more than the largest number of a token: the rows of an embedding.
  virtual std::int64_t vocabulary_size() const = 0;

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
};

}  // namespace trireme::data

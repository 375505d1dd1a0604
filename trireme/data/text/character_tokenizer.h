// SPDX-License-Identifier: Apache-2.0
// A tokenizer with one token per character of a text, like nanoGPT's data/shakespeare_char.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Numbers the characters (code points) of a text in the order of Unicode. Has no special tokens.
/// Cheap to copy.
class CharacterTokenizer final : public Tokenizer {
 public:
  /// Numbers the characters that occur in `text`. Throws DataError with the offset if the text is
  /// not UTF-8, and UsageError if it is empty.
  explicit CharacterTokenizer(std::string_view text);

  /// Reads a file that write() wrote. Throws DataError with the file, and the position if it is
  /// damaged.
  static CharacterTokenizer read(const std::filesystem::path& path);

  /// Writes the characters as JSON: `{"characters": ["\n", " ", "!", ...]}`. The number of a
  /// character is its position. The file is replaced atomically. Throws CheckpointError if the file
  /// cannot be written.
  void write(const std::filesystem::path& path) const;

  /// Returns the tokens of `text`. Throws DataError with character and offset if a character is not
  /// in the vocabulary or the text is not UTF-8.
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  explicit CharacterTokenizer(std::vector<char32_t> characters);

  // The characters in ascending order.
  std::shared_ptr<const std::vector<char32_t>> characters_;
};

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// One token for each character of a text, as nanoGPT's data/shakespeare_char has them.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// The characters (code points) of a text are numbered in the order of Unicode. There are no
/// special tokens. A cheap value.
class CharacterTokenizer final : public Tokenizer {
 public:
  /// Numbers the characters that `text` has. Throws DataError with the offset where it is not
  /// UTF-8, UsageError where it is empty.
  explicit CharacterTokenizer(std::string_view text);

  /// Reads what `write` wrote. Throws DataError with the file, and the place where it is damaged.
  static CharacterTokenizer read(const std::filesystem::path& path);

  /// Writes the characters as JSON: {"characters": ["\n", " ", "!", ...]}, the number of each being
  /// its place. Atomic. Throws CheckpointError where the file system refuses.
  void write(const std::filesystem::path& path) const;

  /// Throws DataError that names character and offset where it is not in the vocabulary or the text
  /// is not UTF-8.
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  explicit CharacterTokenizer(std::vector<char32_t> characters);

  std::shared_ptr<const std::vector<char32_t>> characters_;  // in the order of Unicode
};

}  // namespace trireme::data

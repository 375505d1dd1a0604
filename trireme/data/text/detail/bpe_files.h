// SPDX-License-Identifier: Apache-2.0
// The files of byte-level BPE vocabularies. docs/formats/vocabularies.md has their form.
#pragma once

#include <trireme/data/text/detail/byte_pairs.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/word_pattern.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::data::detail {

/// Tokens as their file writes them, by number and the other way round.
class Vocabulary {
 public:
  /// @param file what messages call it.
  explicit Vocabulary(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }

  /// Throws DataError where the number is negative, beyond 2^24 or there already.
  void add(const std::string& token, std::int64_t number);

  std::optional<std::int32_t> find(std::string_view token) const;

  /// Nothing where no token has this number.
  const std::optional<std::string>& token(std::size_t number) const { return tokens_[number]; }
  /// One more than the largest number.
  std::size_t size() const { return tokens_.size(); }

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    std::size_t operator()(std::string_view token) const {
      return std::hash<std::string_view>()(token);
    }
  };

  std::string file_;
  std::vector<std::optional<std::string>> tokens_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> numbers_;
};

/// All that such files say.
struct BpeRecipe {
  explicit BpeRecipe(std::string file) : vocabulary(std::move(file)) {}

  Vocabulary vocabulary;
  BytePairs pairs;
  std::vector<WordPattern> patterns;  // each cuts the words of the one before
  std::vector<SpecialToken> special;  // that texts of others should not have
  std::vector<SpecialToken> added;    // found like those, and ordinary otherwise
  bool adds_space = false;            // before a text that does not begin with one
  bool prefers_whole_words = false;   // a word in the vocabulary is not merged
};

/// Throws DataError as BpeTokenizer::read does.
BpeRecipe read_gpt2_files(const std::filesystem::path& vocabulary,
                          const std::filesystem::path& merges,
                          const std::vector<std::string>& special_tokens);

/// Throws DataError as BpeTokenizer::read_json does.
BpeRecipe read_tokenizer_json(const std::filesystem::path& path);

}  // namespace trireme::data::detail

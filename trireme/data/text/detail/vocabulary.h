// SPDX-License-Identifier: Apache-2.0
// Maps between tokens, as a vocabulary file writes them, and their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::data::detail {

/// The hint of errors about damaged vocabulary files.
inline constexpr std::string_view kDamagedVocabulary =
    "the file is damaged, or not of this vocabulary: get it anew";

class Vocabulary {
 public:
  /// Makes an empty vocabulary.
  /// @param file the name of the file in messages.
  explicit Vocabulary(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }

  /// Adds a token. If a token is added twice, find() returns the last number. Throws DataError if
  /// the number is negative, 2^24 or more, or taken.
  void add(const std::string& token, std::int64_t number);

  /// Returns the number of a token, or nullopt.
  std::optional<std::int32_t> find(std::string_view token) const;

  /// Returns the token with this number, or nullopt if there is none. `number` is below size().
  const std::optional<std::string>& token(std::size_t number) const { return tokens_[number]; }
  /// Returns the largest number plus one.
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

}  // namespace trireme::data::detail

// SPDX-License-Identifier: Apache-2.0
// Tokens as their file writes them, by number and the other way round.
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

inline constexpr std::string_view kDamagedVocabulary =
    "the file is damaged, or not of this vocabulary: get it anew";

class Vocabulary {
 public:
  /// @param file what messages call it.
  explicit Vocabulary(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }

  /// Of a token that is added twice the last number is found. Throws DataError where the number is
  /// negative, beyond 2^24 or there already.
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

}  // namespace trireme::data::detail

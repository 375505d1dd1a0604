// SPDX-License-Identifier: Apache-2.0
// Tokens that are found by their name, before a text is cut into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::detail {

struct SpecialToken {
  std::string name;
  std::int64_t number = 0;
  bool takes_space_before = false;  ///< White space next to it belongs to it.
  bool takes_space_after = false;
  bool is_special = true;      ///< Texts of others should not have it.
  bool is_normalized = false;  ///< Looked for in the normalized text, by its normalized name.
};

/// Returns those that are not special.
std::vector<SpecialToken> ordinary_tokens(std::vector<SpecialToken> tokens);

/// Finds special tokens in texts. Const methods may be called concurrently.
class SpecialTokens {
 public:
  SpecialTokens() = default;

  /// @param tokens with names that are not empty.
  explicit SpecialTokens(std::vector<SpecialToken> tokens);

  /// A special token, or ordinary text where there is none.
  struct Piece {
    std::string_view text;
    const SpecialToken* token = nullptr;
  };

  /// Cuts `text` at the special tokens in it: the leftmost, and of those the longest. No piece is
  /// empty.
  std::vector<Piece> cut(std::string_view text) const;

 private:
  // The longest one that `text` begins with.
  const SpecialToken* find(std::string_view text) const;

  std::vector<SpecialToken> tokens_;  // the longest first
  std::string first_bytes_;
};

}  // namespace trireme::data::detail

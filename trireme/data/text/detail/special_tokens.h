// SPDX-License-Identifier: Apache-2.0
// Special tokens, which are recognized by their names before a text is split into words, and the
// error for a number that is no token.
#pragma once

#include <trireme/base/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::detail {

/// A token that is recognized by its name.
struct SpecialToken {
  std::string name;                 ///< The name in the text.
  std::int64_t number = 0;          ///< The number of the token.
  bool takes_space_before = false;  ///< White space before the name belongs to the token.
  bool takes_space_after = false;   ///< White space after the name belongs to the token.
  bool is_special = true;           ///< Text from others must not contain it.
  bool is_normalized = false;       ///< The normalized name is searched in the normalized text.
};

/// Returns the tokens that are not special.
std::vector<SpecialToken> ordinary_tokens(std::vector<SpecialToken> tokens);

/// Finds special tokens in texts. Const methods may be called concurrently.
class SpecialTokens {
 public:
  SpecialTokens() = default;

  /// Makes a finder for tokens with non-empty names.
  explicit SpecialTokens(std::vector<SpecialToken> tokens);

  /// A special token, or ordinary text if `token` is null.
  struct Piece {
    std::string_view text;                ///< The text of the piece.
    const SpecialToken* token = nullptr;  ///< The token, or null for ordinary text.
  };

  /// Splits `text` at the special tokens in it. The leftmost token wins, and among those the
  /// longest. No piece is empty.
  std::vector<Piece> cut(std::string_view text) const;

 private:
  // Returns the longest token that `text` begins with, or null.
  const SpecialToken* find(std::string_view text) const;

  // The tokens, longest first.
  std::vector<SpecialToken> tokens_;
  std::string first_bytes_;
};

/// Throws the UsageError for a number that is not a token.
[[noreturn]] inline void fail_unknown_token(std::int64_t token, std::size_t place,
                                            std::int64_t vocabulary_size) {
  throw UsageError(join_message("token ", token, " at place ", place,
                                " is not in the vocabulary, which has 0 to ", vocabulary_size - 1),
                   "decode with the tokenizer that made the tokens");
}

}  // namespace trireme::data::detail

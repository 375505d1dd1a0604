// SPDX-License-Identifier: Apache-2.0
// UTF-8 (RFC 3629), and the few characters that tokenizers name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::data::detail {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  ///< that it takes; 0 where there is no character
};

/// Returns the character that `text` begins with; none where it is empty or begins with bytes that
/// are not UTF-8: overlong forms, surrogates and characters that are cut short are not.
CodePoint first_character(std::string_view text);

/// Returns the character that `text` ends with; none where it is empty or ends in other bytes.
CodePoint last_character(std::string_view text);

/// Returns how many bytes from the beginning of `text` on are UTF-8.
std::size_t valid_bytes(std::string_view text);

/// Returns how many bytes from the beginning of `text` on begin no character.
std::size_t invalid_bytes(std::string_view text);

/// @param character in [0, 0x10FFFF], not a surrogate.
std::string utf8_of(char32_t character);

/// Unicode's White_Space.
bool is_white_space(char32_t character);

/// As `'a' (U+0061)`, for messages; what cannot be printed is left out.
std::string describe_character(char32_t character);

}  // namespace trireme::data::detail

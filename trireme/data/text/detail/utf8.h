// SPDX-License-Identifier: Apache-2.0
// UTF-8 (RFC 3629), and the few properties of characters that tokenizers need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// A character and the number of its bytes in UTF-8.
struct CodePoint {
  char32_t value = 0;     ///< The code point.
  std::size_t bytes = 0;  ///< The number of bytes; 0 if there is no character.
};

/// Returns the first character of `text`; none if the text is empty or does not begin with valid
/// UTF-8. Overlong forms, surrogates and truncated characters are not valid.
CodePoint first_character(std::string_view text);

/// Returns the last character of `text`; none if the text is empty or does not end in valid UTF-8.
CodePoint last_character(std::string_view text);

/// Returns the number of bytes at the beginning of `text` that are valid UTF-8.
std::size_t valid_bytes(std::string_view text);

/// Returns the number of bytes at the beginning of `text` that do not begin a valid character.
std::size_t invalid_bytes(std::string_view text);

/// Encodes a character in [0, 0x10FFFF] that is not a surrogate.
std::string utf8_of(char32_t character);

/// Returns true for characters with Unicode's property White_Space.
bool is_white_space(char32_t character);

/// Returns a text such as `'a' (U+0061)` for messages; without the character if it is not
/// printable.
std::string describe_character(char32_t character);

}  // namespace trireme::data::detail

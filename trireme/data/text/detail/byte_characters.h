// SPDX-License-Identifier: Apache-2.0
// The printable characters that stand for bytes in GPT-2's files.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// Returns the character of each byte, in UTF-8 (`bytes_to_unicode` in GPT-2's encoder.py).
///
/// A printable byte of Latin-1 that is not a space is its own character. The other bytes get the
/// characters from U+0100 on, in order.
const std::array<std::string, 256>& byte_characters();

/// Returns the bytes of a token in such a file. If it has a character that stands for no byte,
/// returns the bytes of the token itself.
std::string bytes_of_token(std::string_view token);

/// Returns the token of these bytes as such a file writes it.
std::string token_of_bytes(std::string_view bytes);

}  // namespace trireme::data::detail

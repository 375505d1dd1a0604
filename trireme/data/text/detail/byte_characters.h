// SPDX-License-Identifier: Apache-2.0
// How GPT-2 writes bytes in its files: each as one printable character.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// Returns the character of each byte, in UTF-8: the byte's own of Latin-1 where that is printed
/// and no space, else the next from U+0100 on (`bytes_to_unicode` in GPT-2's encoder.py).
const std::array<std::string, 256>& byte_characters();

/// Returns the bytes that a token of such a file stands for: its own, where it has a character that
/// stands for no byte.
std::string bytes_of_token(std::string_view token);

/// Writes bytes as such a file does.
std::string token_of_bytes(std::string_view bytes);

}  // namespace trireme::data::detail

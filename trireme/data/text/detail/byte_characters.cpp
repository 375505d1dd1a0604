// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/byte_characters.h>

#include <trireme/data/text/detail/utf8.h>

#include <unordered_map>

namespace trireme::data::detail {
namespace {

bool is_printed(char32_t character) {
  return (character > 0x20 && character < 0x7F) ||
         (character > 0xA0 && character <= 0xFF && character != 0xAD);
}

const std::unordered_map<char32_t, char>& bytes_by_character() {
  static const std::unordered_map<char32_t, char> bytes = [] {
    std::unordered_map<char32_t, char> map;
    for (std::size_t byte = 0; byte < 256; ++byte)
      map[first_character(byte_characters()[byte]).value] = static_cast<char>(byte);
    return map;
  }();
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> all;
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte)
      all[byte] = utf8_of(is_printed(byte) ? byte : next++);
    return all;
  }();
  return characters;
}

std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const CodePoint point = first_character(rest);
    const auto found = bytes_by_character().find(point.value);
    if (point.bytes == 0 || found == bytes_by_character().end()) return std::string(token);
    bytes.push_back(found->second);
    rest.remove_prefix(point.bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) token += byte_characters()[static_cast<unsigned char>(byte)];
  return token;
}

}  // namespace trireme::data::detail

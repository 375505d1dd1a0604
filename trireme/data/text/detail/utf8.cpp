// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/utf8.h>

#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iomanip>

namespace trireme::data::detail {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// Returns the number of bytes of the character with this first byte, and the first byte's value
// bits. Returns {} if the byte cannot be a first byte.
CodePoint lead(unsigned char byte) {
  if (byte < 0x80) return {byte, 1};
  if (byte >= 0xC2 && byte < 0xE0) return {byte & 0x1FU, 2};
  if (byte >= 0xE0 && byte < 0xF0) return {byte & 0x0FU, 3};
  if (byte >= 0xF0 && byte < 0xF5) return {byte & 0x07U, 4};
  return {};
}

}  // namespace

CodePoint first_character(std::string_view text) {
  if (text.empty()) return {};
  CodePoint point = lead(static_cast<unsigned char>(text[0]));
  if (point.bytes < 2) return point;
  if (text.size() < point.bytes) return {};
  for (std::size_t i = 1; i < point.bytes; ++i) {
    if (!continues(text[i])) return {};
    point.value = point.value << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  // Rejects overlong forms, surrogates and values beyond Unicode.
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = point.value >= 0xD800 && point.value < 0xE000;
  if (point.value < kSmallest[point.bytes] || is_surrogate || point.value > 0x10FFFF) return {};
  return point;
}

CodePoint last_character(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes) {
    if (continues(text[text.size() - bytes])) continue;
    const CodePoint point = first_character(text.substr(text.size() - bytes));
    return point.bytes == bytes ? point : CodePoint{};
  }
  return {};
}

std::size_t valid_bytes(std::string_view text) {
  std::size_t valid = 0;
  while (valid < text.size()) {
    if (static_cast<unsigned char>(text[valid]) < 0x80) {
      ++valid;
      continue;
    }
    const std::size_t bytes = first_character(text.substr(valid)).bytes;
    if (bytes == 0) break;
    valid += bytes;
  }
  return valid;
}

std::size_t invalid_bytes(std::string_view text) {
  std::size_t invalid = 0;
  while (invalid < text.size() && first_character(text.substr(invalid)).bytes == 0) ++invalid;
  return invalid;
}

std::string utf8_of(char32_t character) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80U | ((character >> shift) & 0x3FU));
  };
  if (character < 0x80) return {static_cast<char>(character)};
  if (character < 0x800) return {static_cast<char>(0xC0U | character >> 6), tail(0)};
  if (character < 0x10000) return {static_cast<char>(0xE0U | character >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0U | character >> 18), tail(12), tail(6), tail(0)};
}

bool is_white_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

std::string describe_character(char32_t character) {
  TextWriter text;
  if (character > 0x20 && character != 0x7F) text << '\'' << utf8_of(character) << "' (";
  text << "U+" << std::hex << std::uppercase << std::setw(4) << std::setfill('0')
       << static_cast<std::uint32_t>(character);
  if (character > 0x20 && character != 0x7F) text << ')';
  return text.str();
}

}  // namespace trireme::data::detail

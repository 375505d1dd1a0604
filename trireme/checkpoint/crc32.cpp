// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/crc32.h>

#include <libdeflate.h>
#include <zlib.h>

#include <array>
#include <charconv>

namespace trireme::checkpoint {

std::uint32_t update_crc32(std::uint32_t crc, std::span<const std::byte> bytes) {
  // libdeflate does not accept a null pointer for no bytes.
  return bytes.empty() ? crc : ::libdeflate_crc32(crc, bytes.data(), bytes.size());
}

// Uses zlib, because libdeflate has no such function.
std::uint32_t join_crc32(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, second_bytes));
}

std::string hexadecimal(std::uint32_t value) {
  std::array<char, 8> digits{};
  const auto [end, failure] =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const auto length = static_cast<std::size_t>(end - digits.data());
  return std::string(digits.size() - length, '0').append(digits.data(), length);
}

}  // namespace trireme::checkpoint

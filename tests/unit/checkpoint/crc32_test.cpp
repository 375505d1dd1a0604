// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/crc32.h>

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Bytes without a pattern that a checksum could miss.
std::vector<std::byte> mixed(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t value = 1;
  for (std::byte& byte : bytes) {
    value = value * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(value >> 24U);
  }
  return bytes;
}

TEST(Crc32, HasTheCheckValueOfItsCatalogue) {
  EXPECT_EQ(crc32_of(bytes_of("123456789")), 0xCBF43926U);
  EXPECT_EQ(crc32_of({}), 0U);
  EXPECT_EQ(update_crc32(0xCBF43926U, {}), 0xCBF43926U);
  EXPECT_EQ(hexadecimal(0xBF43926U), "0bf43926");
}

TEST(Crc32, IsThatOfZlibForAnyLengthAndAlignment) {
  const std::vector<std::byte> all = mixed(5000);
  for (std::size_t begin = 0; begin < 70; ++begin) {
    for (const std::size_t length : {1UL, 7UL, 63UL, 64UL, 200UL, 1024UL, 4900UL}) {
      const auto bytes = std::span(all).subspan(begin, length);
      const auto expected =
          ::crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
      ASSERT_EQ(crc32_of(bytes), expected) << length << " bytes from " << begin;
    }
  }
}

TEST(Crc32, GoesOnAndIsPutTogether) {
  const std::vector<std::byte> all = mixed(3000);
  const auto whole = crc32_of(all);
  for (const std::size_t size : {0UL, 1UL, 100UL, 1511UL, 3000UL}) {
    const auto first = std::span(all).first(size);
    const auto second = std::span(all).subspan(size);
    EXPECT_EQ(update_crc32(crc32_of(first), second), whole);
    EXPECT_EQ(
        join_crc32(crc32_of(first), crc32_of(second), static_cast<std::int64_t>(second.size())),
        whole);
  }
}

}  // namespace
}  // namespace trireme::checkpoint

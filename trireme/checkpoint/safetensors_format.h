// SPDX-License-Identifier: Apache-2.0
// What reading and writing of the safetensors format share: its names of dtypes, its limits, and
// checksums. Internal to this room.
#pragma once

#include <ATen/core/Tensor.h>
#include <zlib.h>

#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format stores little-endian values");

inline constexpr std::int64_t kLengthBytes = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr std::string_view kChecksumPrefix = "trireme.crc32.";

struct Dtype {
  std::string_view name;
  at::ScalarType type;
};

inline constexpr std::array kDtypes = {
    Dtype{"F64", at::kDouble},
    Dtype{"F32", at::kFloat},
    Dtype{"F16", at::kHalf},
    Dtype{"BF16", at::kBFloat16},
    Dtype{"F8_E4M3", at::kFloat8_e4m3fn},
    Dtype{"F8_E5M2", at::kFloat8_e5m2},
    Dtype{"I64", at::kLong},
    Dtype{"I32", at::kInt},
    Dtype{"I16", at::kShort},
    Dtype{"I8", at::kChar},
    Dtype{"U64", at::kUInt64},
    Dtype{"U32", at::kUInt32},
    Dtype{"U16", at::kUInt16},
    Dtype{"U8", at::kByte},
    Dtype{"BOOL", at::kBool},
};

inline std::int64_t item_bytes(at::ScalarType type) {
  return static_cast<std::int64_t>(c10::elementSize(type));
}

inline std::uint32_t update_crc32(std::uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

inline std::uint32_t crc32_of(std::span<const std::byte> bytes) { return update_crc32(0, bytes); }

// Checksum of two runs of bytes in a row from the checksums of each.
inline std::uint32_t join_crc32(std::uint32_t first, std::uint32_t second,
                                std::int64_t second_bytes) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, second_bytes));
}

inline std::string hexadecimal(std::uint32_t value) {
  std::array<char, 8> digits{};
  const auto [end, failure] =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const auto length = static_cast<std::size_t>(end - digits.data());
  return std::string(digits.size() - length, '0').append(digits.data(), length);
}

}  // namespace trireme::checkpoint

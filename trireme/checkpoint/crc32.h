// SPDX-License-Identifier: Apache-2.0
// CRC-32 as gzip computes it, by the processor's carry-less products where it has them. Internal to
// this component.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trireme::checkpoint {

// Of the bytes before, whose checksum is `crc`, and these.
std::uint32_t update_crc32(std::uint32_t crc, std::span<const std::byte> bytes);

inline std::uint32_t crc32_of(std::span<const std::byte> bytes) { return update_crc32(0, bytes); }

// Of two runs of bytes in a row, from the checksums of each.
std::uint32_t join_crc32(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes);

// Eight digits.
std::string hexadecimal(std::uint32_t value);

}  // namespace trireme::checkpoint

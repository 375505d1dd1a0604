// SPDX-License-Identifier: Apache-2.0
// CRC-32 as gzip computes it, with carry-less multiplication if the processor supports it. Internal
// to this component.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trireme::checkpoint {

/// Returns the checksum of all bytes so far, from the checksum `crc` of the bytes before and these
/// bytes.
std::uint32_t update_crc32(std::uint32_t crc, std::span<const std::byte> bytes);

/// Returns the checksum of these bytes.
inline std::uint32_t crc32_of(std::span<const std::byte> bytes) { return update_crc32(0, bytes); }

/// Returns the checksum of two consecutive runs of bytes from the checksums of each.
std::uint32_t join_crc32(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes);

/// Returns eight hexadecimal digits.
std::string hexadecimal(std::uint32_t value);

}  // namespace trireme::checkpoint

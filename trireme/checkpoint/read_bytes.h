// SPDX-License-Identifier: Apache-2.0
// Reading of runs of bytes from files, with or without their checksum. Internal to this component.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace trireme::checkpoint {

// Where reading stopped; at the end of the file where there is no error number.
struct ReadFailure {
  std::int64_t offset = 0;
  int error_number = 0;
};

// `cannot be read at offset 7: ...` or `became shorter while it was read, at offset 7`; and what to
// do.
std::string describe(const ReadFailure& failure);
std::string hint(const ReadFailure& failure);

// Fills `bytes` with what lies from `offset` on. Nothing where that worked.
[[nodiscard]] std::optional<ReadFailure> read_bytes(int file, std::int64_t offset,
                                                    std::span<std::byte> bytes);

// The same, and carries the checksum on over them while they are in the cache.
[[nodiscard]] std::optional<ReadFailure> read_bytes(int file, std::int64_t offset,
                                                    std::span<std::byte> bytes, std::uint32_t& crc);

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Reads runs of bytes from files, optionally with their checksum, and allocates tensors whose size
// comes from a file. Internal to this component.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace trireme::checkpoint {

/// The offset at which reading failed. Without an error number, the file ended there.
struct ReadFailure {
  std::int64_t offset = 0;  ///< The offset in the file.
  int error_number = 0;     ///< The errno, or 0 at the end of the file.
};

/// Returns `cannot be read at offset 7: ...` or `became shorter while it was read, at offset 7`.
std::string describe(const ReadFailure& failure);
/// Returns the hint for the error message.
std::string hint(const ReadFailure& failure);

/// Fills `bytes` from `offset` on. Returns nullopt on success.
[[nodiscard]] std::optional<ReadFailure> read_bytes(int file, std::int64_t offset,
                                                    std::span<std::byte> bytes);

/// Fills `bytes` and updates the checksum `crc` while they are in the cache.
[[nodiscard]] std::optional<ReadFailure> read_bytes(int file, std::int64_t offset,
                                                    std::span<std::byte> bytes, std::uint32_t& crc);

/// Returns an uninitialized CPU tensor. Throws CheckpointError that begins with `what` if the
/// process cannot have that much memory, before it is requested.
at::Tensor memory_for(const std::string& what, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace trireme::checkpoint

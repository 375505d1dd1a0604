// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/read_bytes.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/crc32.h>

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace trireme::checkpoint {

std::string describe(const ReadFailure& failure) {
  if (failure.error_number == 0) {
    return join_message("became shorter while it was read, at offset ", failure.offset);
  }
  return join_message("cannot be read at offset ", failure.offset, ": ",
                      describe_errno(failure.error_number));
}

std::string hint(const ReadFailure& failure) {
  return failure.error_number == 0 ? "restore it from a good copy; nobody may write to it meanwhile"
                                   : "check the disk";
}

std::optional<ReadFailure> read_bytes(int file, std::int64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ReadFailure{.offset = offset, .error_number = count < 0 ? errno : 0};
    offset += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return std::nullopt;
}

std::optional<ReadFailure> read_bytes(int file, std::int64_t offset, std::span<std::byte> bytes,
                                      std::uint32_t& crc) {
  constexpr std::size_t kInCache = std::size_t{1} << 18;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kInCache));
    if (auto failure = read_bytes(file, offset, part)) return failure;
    crc = update_crc32(crc, part);
    offset += static_cast<std::int64_t>(part.size());
    bytes = bytes.subspan(part.size());
  }
  return std::nullopt;
}

}  // namespace trireme::checkpoint

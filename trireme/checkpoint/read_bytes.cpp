// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/read_bytes.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/tensor_part.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

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

namespace {

[[noreturn]] void refuse(const std::string& what, std::int64_t bytes, const std::string& why) {
  throw CheckpointError(join_message(what, " takes ", bytes, " bytes of memory, ", why),
                        "read a slice of it, cut it over more ranks, or use a machine with more "
                        "memory");
}

}  // namespace

at::Tensor memory_for(const std::string& what, at::IntArrayRef shape, at::ScalarType dtype) {
  const std::int64_t bytes = elements(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
  constexpr std::int64_t kSmall = std::int64_t{64} << 20;  // Allocated without a check.
  if (bytes > kSmall) {
    const std::int64_t most = available_memory();
    if (bytes > most) refuse(what, bytes, join_message("and this process may have ", most));
  }
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  try {
    return at::empty(shape, options);
  } catch (const std::bad_alloc&) {
    refuse(what, bytes, "which the system does not give");
  } catch (const c10::Error&) {  // Thrown by LibTorch's allocator.
    refuse(what, bytes, "which the system does not give");
  }
}

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/mapped_file.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/data/files/check_is_file.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace trireme::data::detail {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int error_number) {
  throw DataError(join_message(path.string(), what, describe_errno(error_number)),
                  "check the permissions of the file");
}

}  // namespace

at::Tensor map_file(const std::filesystem::path& path) {
  check_is_file(path);
  const std::size_t bytes = std::filesystem::file_size(path);
  if (bytes == 0) return at::empty({0}, at::kByte);  // mmap rejects a length of 0.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(path, " cannot be opened: ", errno);
  // at::from_file reserves swap for the whole file and so fails for a file larger than the memory.
  // MAP_PRIVATE keeps writes away from the file; MAP_NORESERVE avoids the reservation.
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) fail(path, " cannot be mapped: ", errno);
  return at::from_blob(
      data, {static_cast<std::int64_t>(bytes)}, [bytes](void* mapped) { ::munmap(mapped, bytes); },
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace trireme::data::detail

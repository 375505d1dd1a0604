// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/file_tensor_memory.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/checkpoint/tensor_part.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <new>

namespace trireme::checkpoint {
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

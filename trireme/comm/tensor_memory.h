// SPDX-License-Identifier: Apache-2.0
// The allocator of tensors on the CPU. A training step allocates and frees the same sizes again and
// again. glibc's malloc, which LibTorch uses by default, needs up to twice the memory of the
// tensors for that (before 2.38). It also returns much of it to the system, so that every step has
// page faults (docs/decisions/0009-tensors-have-a-pool-of-memory.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trireme::shm {
class SharedPages;
}

namespace trireme::comm {

/// The allocator that tensors on the CPU use.
struct TensorMemory {
  /// True if tensors of 64 KiB and more come from a pool of Trireme (base/memory_pool.h). False if
  /// all come from LibTorch's own allocator.
  bool is_pool = false;
  /// The reason why there is no pool.
  std::string reason;
};

/// Chooses the allocator for the whole process. Existing tensors keep their memory. Only the first
/// call chooses; later calls return its result.
///
/// @param name one of these:
/// - `pool`: the pool. Collectives over shared memory may use its tensors in place
///   (engines/shm/shared_pages.h);
/// - `private`: the pool, of which no memory is ever shared with other processes;
/// - `libtorch`: the present allocator of LibTorch;
/// - `auto`: the pool, with three exceptions. LibTorch's allocator stays if the program has given
///   LibTorch another allocator, if addresses cannot be reserved, or if malloc is not that of the C
///   library. The last is the case with an allocator, sanitizer or profiler that the user has
///   loaded.
///
/// @throws ConfigError for another name, and for `pool` and `private` if addresses cannot be
/// reserved.
TensorMemory choose_tensor_memory(std::string_view name);

/// Returns the pages of the pool that collectives may use in place, or null if there are none.
std::shared_ptr<shm::SharedPages> shared_tensor_pages();

}  // namespace trireme::comm

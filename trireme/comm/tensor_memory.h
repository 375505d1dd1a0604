// SPDX-License-Identifier: Apache-2.0
// Where tensors on the processor have their memory. A training step takes and gives back the same
// sizes again and again. glibc's malloc, which LibTorch asks for them, needs up to twice the memory
// of the tensors for that (before 2.38), and returns much of it to the system, so that every step
// faults pages in anew (docs/decisions/0009-tensors-have-a-pool-of-memory.md).
#pragma once

#include <string>
#include <string_view>

namespace trireme::comm {

/// From what tensors on the processor get their memory.
struct TensorMemory {
  /// A pool of Trireme's (base/memory_pool.h) for tensors of 64 KiB and more; else LibTorch's own
  /// allocator for all.
  bool is_pool = false;
  /// Why there is no pool.
  std::string reason;
};

/// Decides it for the process. Tensors made before keep the memory that they have. The first call
/// counts; later ones return what it did.
///
/// @param name `pool`; `libtorch`: leaves what is there; `auto`: the pool, unless malloc is not the
/// C library's (but an allocator, a sanitizer or a profiler that somebody has chosen), LibTorch was
/// given another allocator, or addresses cannot be reserved.
///
/// Throws ConfigError for another name, and for `pool` where addresses cannot be reserved.
TensorMemory choose_tensor_memory(std::string_view name);

}  // namespace trireme::comm

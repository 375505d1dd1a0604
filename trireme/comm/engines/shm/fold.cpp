// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/fold.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace trireme::shm {

namespace baseline {
extern const FoldKernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const FoldKernels kKernels;
}
namespace avx512 {
extern const FoldKernels kKernels;
}
#endif

namespace {

constexpr std::size_t kTileBytes = 8192;

const FoldKernels& best_kernels() {
  static const FoldKernels& best = *runnable_kernels().back();
  return best;
}

FoldKernel kernel_of(ReduceOp op, DataType type) {
  return best_kernels().table[static_cast<int>(op)][static_cast<int>(type)];
}

}  // namespace

std::span<const FoldKernels* const> runnable_kernels() {
  static const std::vector<const FoldKernels*> all = [] {
    std::vector<const FoldKernels*> sets = {&baseline::kKernels};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) sets.push_back(&avx2::kKernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      sets.push_back(&avx512::kKernels);
    }
#endif
    return sets;
  }();
  return all;
}

bool is_defined(ReduceOp op, DataType type) { return kernel_of(op, type) != nullptr; }

void fold(std::span<void* const> destinations, std::span<const void* const> sources,
          std::size_t count, DataType type, Reduction reduction) {
  const FoldKernel kernel = kernel_of(reduction.op, type);
  const int num_sources = static_cast<int>(sources.size());
  if (destinations.size() == 1) {
    kernel(destinations[0], sources.data(), num_sources, count, reduction.factor);
    return;
  }
  const std::size_t tile = kTileBytes / size_of(type);
  std::array<const void*, 64> from;
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t length = std::min(tile, count - begin);
    const std::size_t offset = begin * size_of(type);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      from[s] = static_cast<const std::byte*>(sources[s]) + offset;
    }
    std::byte* first = static_cast<std::byte*>(destinations[0]) + offset;
    kernel(first, from.data(), num_sources, length, reduction.factor);
    for (void* other : destinations.subspan(1)) {
      std::memcpy(static_cast<std::byte*>(other) + offset, first, length * size_of(type));
    }
  }
}

}  // namespace trireme::shm

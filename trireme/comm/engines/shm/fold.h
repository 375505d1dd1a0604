// SPDX-License-Identifier: Apache-2.0
// Folds several buffers into one, element by element, with the widest vector instructions of this
// machine. The kernels are one source, fold_kernels.cpp, compiled once per instruction set; all
// give the same bits.
#pragma once

#include <trireme/comm/engines/shm/data_type.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace trireme::shm {

/// Folds `count` elements of `sources[0]`, `sources[1]`, … in this order into `destination`, which
/// may be one of the sources. `factor` is the reduction's.
using FoldKernel = void (*)(void* destination, const void* const* sources, int num_sources,
                            std::size_t count, double factor);

/// Kernels of one instruction set; null where a reduction is not defined for a type.
struct FoldKernels {
  std::string_view instruction_set;
  FoldKernel table[kNumReduceOps][kNumDataTypes];
};

/// Every set that this build has and this machine can run, the best last; tests compare them.
std::span<const FoldKernels* const> runnable_kernels();

/// Whether the reduction is defined for the type: `and`, `or` and `xor` for integers and bool;
/// minimum and maximum for all but complex; average for all but bool; a pre-multiplied sum for
/// floating point and complex.
bool is_defined(ReduceOp op, DataType type);

/// Folds sources of `count` elements into all of `destinations`, tile by tile, so that the copies
/// come from the first-level cache. The reduction must be defined for the type.
void fold(std::span<void* const> destinations, std::span<const void* const> sources,
          std::size_t count, DataType type, Reduction reduction);

}  // namespace trireme::shm

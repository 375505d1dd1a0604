// SPDX-License-Identifier: Apache-2.0
// Combines several buffers into one, element by element, with the widest vector instructions of
// this machine. The kernels have one source, fold_kernels.cpp, which is compiled once per
// instruction set. All of them compute the same bits.
#pragma once

#include <trireme/comm/engines/shm/data_type.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace trireme::shm {

/// Combines `count` elements of `sources[0]`, `sources[1]`, … in this order into `destination`. The
/// destination may be one of the sources. `factor` is that of the reduction.
using FoldKernel = void (*)(void* destination, const void* const* sources, int num_sources,
                            std::size_t count, double factor);

/// The kernels of one instruction set. An entry is null if the reduction is not defined for the
/// type.
struct FoldKernels {
  std::string_view instruction_set;
  FoldKernel table[kNumReduceOps][kNumDataTypes];
};

/// Returns the kernels of this build that this machine can run, the best last. Tests compare them.
std::span<const FoldKernels* const> runnable_kernels();

/// Returns whether the reduction is defined for the type. `and`, `or` and `xor` are defined for
/// integers and bool. Minimum and maximum are defined for all types but complex ones, the average
/// for all but bool. A pre-multiplied sum is defined for floating point and complex.
bool is_defined(ReduceOp op, DataType type);

/// Combines sources of `count` elements and writes the result to all `destinations`. Works in
/// tiles, so that the copies come from the first-level cache. The reduction must be defined for the
/// type.
void fold(std::span<void* const> destinations, std::span<const void* const> sources,
          std::size_t count, DataType type, Reduction reduction);

}  // namespace trireme::shm

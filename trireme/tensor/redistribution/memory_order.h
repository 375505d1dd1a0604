// SPDX-License-Identifier: Apache-2.0
// The order in which the dims of a tensor lie in memory. Redistribution numbers dims in that order,
// so that a channels-last tensor is a contiguous tensor with renumbered dims.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace trireme::tensor {

using Sizes = c10::SmallVector<std::int64_t, 5>;
using Dims = c10::SmallVector<int, 5>;

/// Returns the dims from the outermost to the innermost in memory. Throws UsageError where the
/// format is not defined for a tensor of that many dims.
Dims memory_order(c10::MemoryFormat format, std::size_t num_dims);

/// Returns `sizes[order[0]], sizes[order[1]], …`.
Sizes in_order(c10::ArrayRef<std::int64_t> sizes, const Dims& order);

/// Returns row-major strides.
Sizes strides_of(c10::ArrayRef<std::int64_t> sizes);

/// Returns the product of the sizes.
std::int64_t elements_of(c10::ArrayRef<std::int64_t> sizes);

}  // namespace trireme::tensor

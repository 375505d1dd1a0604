// SPDX-License-Identifier: Apache-2.0
// In which order the dims of a tensor lie in memory. Redistribution works on dims in that order,
// so that a channels-last tensor is a contiguous one with other numbers of dims.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace trireme::tensor {

using Sizes = c10::SmallVector<std::int64_t, 5>;
using Dims = c10::SmallVector<int, 5>;

/// The dims from the outermost in memory to the innermost. Throws UsageError where a tensor of that
/// many dims has no such format.
Dims memory_order(c10::MemoryFormat format, std::size_t num_dims);

/// `sizes[order[0]], sizes[order[1]], …`
Sizes in_order(c10::ArrayRef<std::int64_t> sizes, const Dims& order);

/// Row-major.
Sizes strides_of(c10::ArrayRef<std::int64_t> sizes);

std::int64_t elements_of(c10::ArrayRef<std::int64_t> sizes);

}  // namespace trireme::tensor

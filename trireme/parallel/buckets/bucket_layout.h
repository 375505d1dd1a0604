// SPDX-License-Identifier: Apache-2.0
// Which tensors share a bucket, and where in it each lies.
#pragma once

#include <trireme/parallel/module/agreement.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::detail {

/// LibTorch's vectorised kernels give other bits at other alignments; its own allocator aligns to
/// 64 bytes.
inline constexpr std::int64_t kAlignment = 64;

struct BucketLayout {
  struct Place {
    std::size_t tensor;   ///< index into the list that was assigned
    std::int64_t offset;  ///< in elements; a multiple of 64 bytes
  };
  std::vector<Place> places;
  std::int64_t elements = 0;  ///< of all tensors with what fills them up to 64 bytes each
  int kind = 0;
};

/// Fills buckets with the tensors in that order. A bucket holds one device, dtype and kind and is
/// full when its tensors have `bytes` bytes, the first `first_bytes`; it takes its place when it is
/// full, and those left over follow in the order in which they were opened, which is the same on
/// all ranks whatever their devices are called.
/// @param order indices of the tensors that are to lie in buckets.
/// @param kinds of the tensors; empty: all alike.
std::vector<BucketLayout> assign_buckets(const std::vector<NamedTensor>& tensors,
                                         const std::vector<std::size_t>& order,
                                         std::int64_t first_bytes, std::int64_t bytes,
                                         const std::vector<int>& kinds = {});

/// A slice of `memory` that autograd does not take for a view, so that zero_grad(false) may detach
/// it in place. `offset` and `strides` in elements.
at::Tensor slice_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides);

}  // namespace trireme::detail

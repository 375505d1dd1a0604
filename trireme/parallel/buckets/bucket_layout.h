// SPDX-License-Identifier: Apache-2.0
// Assigns tensors to buckets and gives each its place in the bucket's flat memory.
#pragma once

#include <trireme/parallel/module/agreement.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::detail {

/// The alignment of every tensor in a bucket, in bytes. LibTorch's vectorised kernels round
/// differently at other alignments, and its own allocator aligns to 64 bytes.
inline constexpr std::int64_t kAlignment = 64;

/// The tensors of one bucket and their places.
struct BucketLayout {
  struct Place {
    std::size_t tensor;   ///< index into the list of tensors that was assigned
    std::int64_t offset;  ///< of its first element, in elements; a multiple of 64 bytes
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> places;
  std::int64_t elements = 0;  ///< length of the bucket, including padding to 64 bytes per tensor
  int kind = 0;               ///< the caller's kind, such as the ZeRO level
  bool operator==(const BucketLayout&) const = default;
};

/// Fills buckets with the tensors in the given order. A bucket holds tensors of one device, dtype
/// and kind, and is full when its tensors have `bytes` bytes. Buckets are returned in the order in
/// which they became full. The partly filled ones follow in the order in which they were opened.
/// That order is the same on all ranks, whatever their devices are called.
/// @param order indices of the tensors to assign.
/// @param first_bytes size at which the first bucket is full; a small one starts communication
///     early.
/// @param kinds the kind of each tensor; empty if all are of the same kind.
std::vector<BucketLayout> assign_buckets(const std::vector<NamedTensor>& tensors,
                                         const std::vector<std::size_t>& order,
                                         std::int64_t first_bytes, std::int64_t bytes,
                                         const std::vector<int>& kinds = {});

/// Returns a slice of `memory` that autograd does not treat as a view, so that zero_grad(false) may
/// detach it in place. `offset` and `strides` are in elements.
at::Tensor slice_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides);

}  // namespace trireme::detail

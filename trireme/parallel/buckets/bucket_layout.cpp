// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/buckets/bucket_layout.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace trireme::detail {
namespace {

// Rounds the size of a tensor up to a multiple of 64 bytes, in elements.
std::int64_t aligned_elements(const at::Tensor& tensor) {
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  return (tensor.numel() * element + kAlignment - 1) / kAlignment * kAlignment / element;
}

BucketLayout empty_bucket(int kind) { return {.places = {}, .elements = 0, .kind = kind}; }

}  // namespace

std::vector<BucketLayout> assign_buckets(const std::vector<NamedTensor>& tensors,
                                         const std::vector<std::size_t>& order,
                                         std::int64_t first_bytes, std::int64_t bytes,
                                         const std::vector<int>& kinds) {
  struct Open {
    at::Device device;
    at::ScalarType dtype;
    BucketLayout bucket;
    std::int64_t bytes = 0;
  };
  std::vector<BucketLayout> buckets;
  std::vector<Open> all_open;
  for (const std::size_t index : order) {
    const at::Tensor& tensor = tensors[index].tensor;
    const int kind = kinds.empty() ? 0 : kinds[index];
    auto open = std::find_if(all_open.begin(), all_open.end(), [&](const Open& candidate) {
      return candidate.device == tensor.device() && candidate.dtype == tensor.scalar_type() &&
             candidate.bucket.kind == kind;
    });
    if (open == all_open.end()) {
      open = all_open.insert(open, {tensor.device(), tensor.scalar_type(), empty_bucket(kind)});
    }
    open->bucket.places.push_back({index, open->bucket.elements});
    open->bucket.elements += aligned_elements(tensor);
    open->bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (open->bytes >= (buckets.empty() ? first_bytes : bytes)) {
      buckets.push_back(std::exchange(open->bucket, empty_bucket(kind)));
      open->bytes = 0;
    }
  }
  for (Open& open : all_open) {
    if (!open.bucket.places.empty()) buckets.push_back(std::move(open.bucket));
  }
  return buckets;
}

at::Tensor slice_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  return at::empty({0}, memory.options()).set_(memory.storage(), offset, sizes, strides);
}

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Slices of every kind in one form, and the copying of what two of them have in common. Internal to
// this component.
#pragma once

#include <trireme/checkpoint/tensor_part.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::checkpoint {

// Elements [begin, end) of a box, counted through with all its dimensions in that order, the last
// one fastest. Values of a region are flat, in its order.
struct Region {
  Box box;
  std::vector<std::int64_t> order;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t elements() const { return end - begin; }
  // Part of it, counted from its begin on.
  Region part(std::int64_t from, std::int64_t to) const;
};

// A box whose elements follow each other in the whole tensor comes out as a range of that, so that
// slices along the first dimension look alike whatever they were given as.
Region region_of(const Slice& slice, at::IntArrayRef shape);

// Whether two count the same box in the same order, so that their ranges can be compared.
bool counts_alike(const Region& one, const Region& other);

// The boxes that make up a region, none of them empty: 2 n - 1 at most for n dimensions.
std::vector<Box> boxes_of(const Region& region);

// A region that values are copied into, with its boxes.
class Target {
 public:
  // `values` has [n] elements in the order of the region.
  Target(Region region, at::Tensor values);

  const Region& region() const noexcept { return region_; }
  const at::Tensor& values() const noexcept { return values_; }

  // The smallest part of `source` that has all that the two have in common, counted from the begin
  // of `source` on; nothing where they have nothing in common.
  std::optional<FlatRange> common_part(const Region& source) const;

  // Copies what the two have in common. From several threads at once for sources that have nothing
  // in common.
  void copy_from(const Region& source, const at::Tensor& values) const;

 private:
  Region region_;
  std::vector<Box> boxes_;
  at::Tensor values_;
};

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
// A common form for all kinds of slices, and the copying of their common elements. Internal to this
// component.
#pragma once

#include <trireme/checkpoint/tensor_part.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::checkpoint {

/// Elements [begin, end) of a box, counted with its dimensions in `order`, the last one fastest.
/// The values of a region are flat, in this order.
struct Region {
  Box box;                          ///< The box.
  std::vector<std::int64_t> order;  ///< All dimensions, slowest first.
  std::int64_t begin = 0;           ///< The first element.
  std::int64_t end = 0;             ///< The element after the last.

  std::int64_t elements() const { return end - begin; }
  /// Returns elements [from, to) of the region, counted from its beginning.
  Region part(std::int64_t from, std::int64_t to) const;
};

/// Returns the region of a slice. A box whose elements are consecutive in the tensor becomes a
/// range of the tensor, so that slices along the first dimension have the same form however they
/// were given.
Region region_of(const Slice& slice, at::IntArrayRef shape);

/// Returns true if both regions count the same box in the same order, so that their ranges can be
/// compared.
bool counts_alike(const Region& one, const Region& other);

/// Returns the boxes that make up a region, none of them empty: at most 2 n - 1 for n dimensions.
std::vector<Box> boxes_of(const Region& region);

/// A region that values are copied into.
class Target {
 public:
  /// Makes a target. `values` has [n] elements in the order of the region.
  Target(Region region, at::Tensor values);

  const Region& region() const noexcept { return region_; }
  /// Returns the values.
  const at::Tensor& values() const noexcept { return values_; }

  /// Returns the smallest range of `source` that contains all common elements, counted from the
  /// beginning of `source`; nullopt if there are none.
  std::optional<FlatRange> common_part(const Region& source) const;

  /// Copies the common elements. Several threads may call it at the same time for sources without
  /// common elements.
  void copy_from(const Region& source, const at::Tensor& values) const;

 private:
  Region region_;
  std::vector<Box> boxes_;
  at::Tensor values_;
};

}  // namespace trireme::checkpoint

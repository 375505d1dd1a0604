// SPDX-License-Identifier: Apache-2.0
// The part of a tensor that a rank holds, independent of how and why the tensor was divided.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace trireme::checkpoint {

/// Elements [begin, end) of a tensor whose elements are counted with the dimensions in `order`, the
/// last one fastest. An empty order means row-major order.
struct FlatRange {
  std::int64_t begin = 0;             ///< The first element.
  std::int64_t end = 0;               ///< The element after the last.
  std::vector<std::int64_t> order{};  ///< The dimensions, slowest first.
  /// Compares all members.
  bool operator==(const FlatRange&) const = default;
};

/// Elements [begin[d], begin[d] + size[d]) of each dimension d.
struct Box {
  std::vector<std::int64_t> begin{};  ///< The first index in each dimension.
  std::vector<std::int64_t> size{};   ///< The number of indices in each dimension.
  /// Compares all members.
  bool operator==(const Box&) const = default;
};

/// A range of the elements of a box, counted like a tensor of the size of the box. This is the
/// result of dividing a box further into flat ranges.
struct BoxRange {
  Box box{};          ///< The box.
  FlatRange range{};  ///< The range within the box.
  /// Compares all members.
  bool operator==(const BoxRange&) const = default;
};

/// A part of a tensor.
using Slice = std::variant<FlatRange, Box, BoxRange>;

/// Returns the number of elements of a slice.
std::int64_t slice_elements(const Slice& slice);
/// Returns the number of elements of a shape.
std::int64_t elements(at::IntArrayRef shape);

/// Returns true if a tensor of that shape contains the slice.
bool is_inside(const Slice& slice, at::IntArrayRef shape);

/// Returns the range of all elements in row-major order.
FlatRange whole(at::IntArrayRef shape);
/// Returns true if the slice is the range of all elements in row-major order.
bool is_whole(const Slice& slice, at::IntArrayRef shape);

/// Returns the order (see FlatRange) in which the elements of a dense tensor lie in memory; empty
/// for row-major order.
std::vector<std::int64_t> memory_order(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns `[3, 4)` for a range, `[0:2, 4:8]` for a box, and `[0:2, 4:8][3, 4)` for a range of a
/// box.
std::string describe(const Slice& slice);

/// A part of a tensor that a rank contributes to a checkpoint.
struct TensorPart {
  /// The section, which determines the files: lower-case letters, such as `model`.
  std::string section;
  /// The name of the tensor.
  std::string name;
  /// The shape of the whole tensor.
  std::vector<std::int64_t> shape{};
  /// The elements of the part.
  Slice slice{};
  /// A plain tensor with the elements. For a range: [n], or any shape with n elements, which are
  /// taken in row-major order. For a box: the size of the box.
  at::Tensor local{};
  /// True if every rank has the same part; one of them writes it.
  bool is_replicated = false;
  /// The ranks of the saving group that have the same part, including this one, in ascending order;
  /// one of them writes it. Each of them must pass the same list, and pass parts with the same list
  /// in the same order.
  std::vector<int> holders{};
  /// True if `local` may change between two steps of the optimizer, as buffers do in forward.
  bool changes_any_time = false;
};

/// Returns the part for a tensor that every rank holds completely.
TensorPart replicated(std::string section, std::string name, const at::Tensor& tensor);

}  // namespace trireme::checkpoint

// SPDX-License-Identifier: Apache-2.0
// What a rank holds of a tensor that may be cut: a value that says nothing of how, or why, it was
// cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace trireme::checkpoint {

/// Elements [begin, end) of a tensor whose elements are counted through with the dimensions in that
/// order, the last one fastest; without an order, row by row.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<std::int64_t> order{};
  bool operator==(const FlatRange&) const = default;
};

/// Elements [begin[d], begin[d] + size[d]) of each dimension d.
struct Box {
  std::vector<std::int64_t> begin{};
  std::vector<std::int64_t> size{};
  bool operator==(const Box&) const = default;
};

/// Elements of a box, counted through as a tensor of the box's size: what is left of a box that is
/// cut once more, into flat ranges.
struct BoxRange {
  Box box{};
  FlatRange range{};
  bool operator==(const BoxRange&) const = default;
};

using Slice = std::variant<FlatRange, Box, BoxRange>;

/// Number of elements.
std::int64_t slice_elements(const Slice& slice);
std::int64_t elements(at::IntArrayRef shape);

/// Whether a tensor of that shape has the slice.
bool is_inside(const Slice& slice, at::IntArrayRef shape);

/// All of a tensor, row by row.
FlatRange whole(at::IntArrayRef shape);
bool is_whole(const Slice& slice, at::IntArrayRef shape);

/// The order of FlatRange in which the elements of a dense tensor lie in memory; empty where that
/// is row by row.
std::vector<std::int64_t> memory_order(at::IntArrayRef sizes, at::IntArrayRef strides);

/// `[3, 4)`, `[0:2, 4:8]` for a box, `[0:2, 4:8][3, 4)` for a range of one.
std::string describe(const Slice& slice);

struct TensorPart {
  /// Which files it goes to: lower-case letters, such as `model`.
  std::string section;
  std::string name;
  /// Of the whole tensor.
  std::vector<std::int64_t> shape{};
  Slice slice{};
  /// A plain tensor: [n] or of any shape of n elements for a range, which are taken row by row; of
  /// the box's size for a box.
  at::Tensor local{};
  /// Every rank has the same part, and one of them writes it.
  bool is_replicated = false;
  /// Or some ranks of the group that saves have it, this one among them, in ascending order: one of
  /// them writes it. Each of them gives it with the same list, and parts of one list in the same
  /// order.
  std::vector<int> holders{};
};

/// A tensor that every rank has.
TensorPart replicated(std::string section, std::string name, const at::Tensor& tensor);

}  // namespace trireme::checkpoint

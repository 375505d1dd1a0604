// SPDX-License-Identifier: Apache-2.0
// Tensors of which it is known, without communication, what every rank holds in every layout.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::test {

using Lengths = std::vector<std::int64_t>;

inline std::vector<MeshAxis> axes_of(const Lengths& lengths) {
  std::vector<MeshAxis> axes;
  for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
    axes.push_back({std::string(1, static_cast<char>('a' + axis)), lengths[axis]});
  }
  return axes;
}

inline int num_ranks(const Lengths& lengths) {
  std::int64_t ranks = 1;
  for (const std::int64_t length : lengths) ranks *= length;
  return static_cast<int>(ranks);
}

/// Any bytes, other ones for every `salt`; bools are 0 or 1.
inline at::Tensor bytes_of(const Lengths& sizes, at::ScalarType dtype, std::int64_t salt) {
  const at::Tensor tensor = at::empty(sizes, dtype);
  auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
  for (std::size_t index = 0; index < tensor.nbytes(); ++index) {
    const auto byte =
        static_cast<std::uint8_t>(index * 37 + static_cast<std::size_t>(salt) * 101 + index / 251);
    bytes[index] = dtype == at::kBool ? byte % 2 : byte;
  }
  return tensor;
}

/// Small whole numbers, which every order of additions adds exactly; for a product powers of two.
inline at::Tensor numbers_of(const Lengths& sizes, at::ScalarType dtype, std::int64_t salt,
                             PartialOp op) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor index = at::arange(count, at::kLong);
  at::Tensor numbers = ((index * 7).add_(index.mul(index), 3).add_(salt * 13)).remainder(9);
  if (op == PartialOp::kProduct) {
    numbers = numbers.remainder(2).add_(1);
  } else if (dtype == at::kBool) {
    numbers = numbers.remainder(2);
  } else if (dtype != at::kByte) {
    numbers.sub_(4);
  }
  if (op == PartialOp::kAverage) numbers.mul_(12);  // whole for up to four ranks, and for six
  if (dtype == at::kBool) numbers = numbers.remainder(2);
  if (at::isComplexType(dtype)) {
    const at::ScalarType real = c10::toRealValueType(dtype);
    return at::complex(numbers.to(real), numbers.mul(op == PartialOp::kProduct ? 0 : 3).to(real))
        .view(sizes);
  }
  return numbers.to(dtype).view(sizes);
}

inline at::Tensor combine(const at::Tensor& a, const at::Tensor& b, PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
    case PartialOp::kAverage:
      return a.add(b);
    case PartialOp::kMaximum:
      return at::maximum(a, b);
    case PartialOp::kMinimum:
      return at::minimum(a, b);
    case PartialOp::kProduct:
      break;
  }
  return a.mul(b);
}

inline at::Tensor finish(const at::Tensor& folded, std::int64_t count, PartialOp op) {
  if (op != PartialOp::kAverage) return folded;
  return at::isIntegralType(folded.scalar_type(), false) ? folded.div(count, "trunc")
                                                         : folded.div(count);
}

/// What the rank at `coordinate` has where every Partial were Replicate: a copy.
inline at::Tensor slice_of(const at::Tensor& whole, const Layout& layout,
                           c10::ArrayRef<std::int64_t> coordinate) {
  for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
    const Placement& placement = layout.placements()[axis];
    if (!placement.is_flat_shard()) continue;
    const FlatRange& range = placement.ranges()[static_cast<std::size_t>(coordinate[axis])];
    return whole.contiguous().view({-1}).narrow(0, range.offset, range.length).clone();
  }
  at::Tensor slice = whole;
  const auto extents = local_extents(whole.sizes(), layout, coordinate);
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    slice = slice.narrow(static_cast<std::int64_t>(dim), extents[dim].offset, extents[dim].size);
  }
  return slice.clone(at::MemoryFormat::Contiguous);
}

/// The axes that are Partial, as one number for each coordinate.
inline std::int64_t contribution_of(const Layout& layout, c10::ArrayRef<std::int64_t> coordinate) {
  std::int64_t index = 0;
  for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
    if (!layout.placements()[axis].is_partial()) continue;
    index = index * layout.mesh_state()->axes[axis].size + coordinate[axis];
  }
  return index;
}

inline std::int64_t num_contributions(const Layout& layout) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < layout.placements().size(); ++axis) {
    if (layout.placements()[axis].is_partial()) count *= layout.mesh_state()->axes[axis].size;
  }
  return count;
}

/// The only op of a layout's Partials.
inline PartialOp op_of(const Layout& layout) {
  for (const Placement& placement : layout.placements()) {
    if (placement.is_partial()) return placement.op();
  }
  return PartialOp::kSum;
}

/// A tensor in a layout: its value, and what each rank has of it, in order of the mesh.
struct HeldTensor {
  at::Tensor whole;
  std::vector<at::Tensor> locals;
};

/// `op` says which numbers to choose where the layout has no Partial itself. Any bytes where
/// neither has: is_copied.
inline HeldTensor hold(const Lengths& sizes, at::ScalarType dtype, const Layout& layout,
                       PartialOp op, bool is_copied, std::int64_t salt) {
  HeldTensor held;
  std::vector<at::Tensor> contributions;
  const std::int64_t count = num_contributions(layout);
  if (layout.has_partial()) op = op_of(layout);
  for (std::int64_t index = 0; index < count; ++index) {
    contributions.push_back(is_copied ? bytes_of(sizes, dtype, salt)
                                      : numbers_of(sizes, dtype, salt + index, op));
    held.whole = index == 0 ? contributions[0] : combine(held.whole, contributions.back(), op);
  }
  if (layout.has_partial()) held.whole = finish(held.whole, count, op);
  const DeviceMesh mesh = layout.mesh();
  for (int rank = 0; rank < static_cast<int>(mesh.size()); ++rank) {
    const auto coordinate = mesh.coordinate_of(rank);
    const auto contribution = static_cast<std::size_t>(contribution_of(layout, coordinate));
    held.locals.push_back(slice_of(contributions[contribution], layout, coordinate));
  }
  return held;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// What is wrong with `locals` as a tensor of that value in that layout; empty where nothing is.
inline std::string difference(const at::Tensor& whole, const Layout& layout,
                              const std::vector<at::Tensor>& locals) {
  const DeviceMesh mesh = layout.mesh();
  for (int rank = 0; rank < static_cast<int>(mesh.size()); ++rank) {
    const auto coordinate = mesh.coordinate_of(rank);
    if (contribution_of(layout, coordinate) != 0) continue;
    // Folds those that differ along Partial axes alone, in their order.
    at::Tensor value;
    for (int other = 0; other < static_cast<int>(mesh.size()); ++other) {
      const auto place = mesh.coordinate_of(other);
      bool is_alike = true;
      for (std::size_t axis = 0; axis < place.size(); ++axis) {
        is_alike =
            is_alike && (layout.placements()[axis].is_partial() || place[axis] == coordinate[axis]);
      }
      if (!is_alike) continue;
      const at::Tensor& local = locals[static_cast<std::size_t>(other)];
      if (!local.defined()) return "rank " + std::to_string(other) + " has nothing";
      value = value.defined() ? combine(value, local, op_of(layout)) : local;
    }
    if (layout.has_partial()) value = finish(value, num_contributions(layout), op_of(layout));
    const at::Tensor expected = slice_of(whole, layout, coordinate);
    if (same_bits(value, expected)) continue;
    std::ostringstream text;
    text << "rank " << rank << " has " << value.sizes() << " ";
    text << value.to(at::kComplexDouble) << "\nexpected " << expected.sizes() << " "
         << expected.to(at::kComplexDouble);
    return text.str();
  }
  return {};
}

}  // namespace trireme::test

// SPDX-License-Identifier: Apache-2.0
// Placement: how the values of a tensor are distributed over the ranks along one axis of a mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// The reduction that makes one value of those of Partial ranks.
enum class PartialOp : std::uint8_t { kSum, kAverage, kMaximum, kMinimum, kProduct };

/// Every rank along the axis holds the whole tensor.
struct Replicate {};

/// The tensor is divided along `dim` into one part for each rank, in the order of the coordinate.
/// Sizes of parts differ by one at most, and the longer ones come first. If the size is below the
/// number of ranks, the last parts are empty.
///
/// `level` gives the order in which axes divide the same dim: level 0 divides the dim, level 1 the
/// parts of level 0, and so on. The default of -1 follows the order of the axes.
struct Shard {
  int dim = 0;     ///< the dim that is divided, counted from the front
  int level = -1;  ///< order among the axes that divide the same dim; -1 for the order of the axes
};

/// Every rank holds a tensor of the full shape, and the value is the reduction of them by `op`.
struct Partial {
  PartialOp op = PartialOp::kSum;  ///< the reduction
};

/// Elements [offset, offset + length) of the flattened tensor.
struct FlatRange {
  std::int64_t offset = 0;  ///< first element
  std::int64_t length = 0;  ///< number of elements; may be 0
  bool operator==(const FlatRange&) const = default;
};

/// Every rank holds one range of the flattened tensor, as a tensor of one dim. Sharded optimizers
/// use it. The ranges are given for every coordinate; together they cover the tensor without
/// overlap. Valid for pointwise operators, redistribution and checkpoints, and on one axis at most.
struct FlatShard {
  std::vector<FlatRange> ranges;  ///< one for each coordinate along the axis
};

/// One of Replicate, Shard, Partial and FlatShard, as a value of two words.
class Placement {
 public:
  /// The kinds of placement.
  enum class Kind : std::uint8_t { kReplicate, kShard, kPartial, kFlatShard };

  /// Makes Replicate.
  constexpr Placement() = default;
  constexpr Placement(Replicate) {}  // NOLINT(google-explicit-constructor): reads as what it is
  /// Throws UsageError for a dim or a level outside -128 to 127.
  constexpr Placement(Shard shard)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kShard), dim_(narrow(shard.dim, shard)), level_(narrow(shard.level, shard)) {}
  constexpr Placement(Partial partial)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kPartial), op_(partial.op) {}
  /// Keeps the ranges for the life of the process, once for equal lists.
  Placement(const FlatShard& flat);  // NOLINT(google-explicit-constructor)

  /// Returns which of the kinds it is.
  constexpr Kind kind() const noexcept { return kind_; }
  /// Returns whether it is a Replicate.
  constexpr bool is_replicate() const noexcept { return kind_ == Kind::kReplicate; }
  /// Returns whether it is a Shard.
  constexpr bool is_shard() const noexcept { return kind_ == Kind::kShard; }
  /// Returns whether it is a Shard of that dim.
  constexpr bool is_shard(std::int64_t dim) const noexcept { return is_shard() && dim_ == dim; }
  /// Returns whether it is a Partial.
  constexpr bool is_partial() const noexcept { return kind_ == Kind::kPartial; }
  /// Returns whether it is a Partial of that reduction.
  constexpr bool is_partial(PartialOp op) const noexcept { return is_partial() && op_ == op; }
  /// Returns whether it is a FlatShard.
  constexpr bool is_flat_shard() const noexcept { return kind_ == Kind::kFlatShard; }

  /// The dim of a Shard; -1 for the other kinds.
  constexpr int dim() const noexcept { return dim_; }
  /// The level of a Shard, 0 for the first that divides its dim. -1 means the order of the axes,
  /// and stands for the other kinds too.
  constexpr int level() const noexcept { return level_; }
  /// The reduction of a Partial; kSum for the other kinds.
  constexpr PartialOp op() const noexcept { return op_; }

  /// The ranges of a FlatShard by coordinate; empty for the other kinds. Equal lists are stored
  /// once and live as long as the process, which makes placements cheap to compare.
  const std::vector<FlatRange>& ranges() const noexcept;

  /// Returns text such as `Shard(0)`, `Shard(1, level 1)`, `Replicate`, `Partial(sum)` or
  /// `FlatShard(0+12, 12+11)`.
  std::string to_string() const;

  constexpr bool operator==(const Placement&) const = default;
  /// Returns a hash, equal for equal placements.
  std::size_t hash() const noexcept;

 private:
  [[noreturn]] static void refuse(Shard shard);
  static constexpr std::int8_t narrow(int number, Shard shard) {
    if (number < -128 || number > 127) refuse(shard);
    return static_cast<std::int8_t>(number);
  }

  Kind kind_ = Kind::kReplicate;
  std::int8_t dim_ = -1;
  std::int8_t level_ = -1;
  PartialOp op_ = PartialOp::kSum;
  const std::vector<FlatRange>* ranges_ = nullptr;  // interned, never freed
};

/// Returns `sum`, `average`, `maximum`, `minimum` or `product`.
const char* to_string(PartialOp op);

}  // namespace trireme

/// Hashes placements, for unordered containers.
template <>
struct std::hash<trireme::Placement> {
  /// Returns Placement::hash().
  std::size_t operator()(const trireme::Placement& placement) const noexcept {
    return placement.hash();
  }
};

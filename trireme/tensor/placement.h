// SPDX-License-Identifier: Apache-2.0
// Placement: what the ranks along one axis of a mesh hold of a tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// How the values of Partial ranks become one.
enum class PartialOp : std::uint8_t { kSum, kAverage, kMaximum, kMinimum, kProduct };

/// Every rank holds all of it.
struct Replicate {};

/// Cut along `dim` into one part a rank, in order of the coordinate: as equal as they can be, the
/// first ones one longer where the size does not divide, the last ones empty where it is less than
/// the ranks. Where several axes cut the same dim, that of level 0 cuts first, that of level 1 cuts
/// its parts, and so on; levels that are left out follow the order of the axes.
struct Shard {
  int dim = 0;
  int level = -1;
};

/// Every rank holds a tensor of the full shape; the value is what `op` makes of them.
struct Partial {
  PartialOp op = PartialOp::kSum;
};

/// Elements [offset, offset + length) of the flattened tensor.
struct FlatRange {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  bool operator==(const FlatRange&) const = default;
};

/// Every rank holds a range of the flattened tensor as a tensor of one dim: what sharded optimizers
/// step. The ranges are given for every coordinate; they may not overlap and must cover all.
/// Valid for pointwise work, redistribution and checkpoints, on one axis at most.
struct FlatShard {
  std::vector<FlatRange> ranges;
};

/// One of the above, as a small value: compared and hashed as two words.
class Placement {
 public:
  enum class Kind : std::uint8_t { kReplicate, kShard, kPartial, kFlatShard };

  constexpr Placement() = default;
  constexpr Placement(Replicate) {}  // NOLINT(google-explicit-constructor): reads as what it is
  /// Throws UsageError for a dim or a level that no tensor can have (beyond -128 to 127).
  constexpr Placement(Shard shard)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kShard), dim_(narrow(shard.dim, shard)), level_(narrow(shard.level, shard)) {}
  constexpr Placement(Partial partial)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kPartial), op_(partial.op) {}
  Placement(const FlatShard& flat);  // NOLINT(google-explicit-constructor)

  constexpr Kind kind() const noexcept { return kind_; }
  constexpr bool is_replicate() const noexcept { return kind_ == Kind::kReplicate; }
  constexpr bool is_shard() const noexcept { return kind_ == Kind::kShard; }
  constexpr bool is_shard(std::int64_t dim) const noexcept { return is_shard() && dim_ == dim; }
  constexpr bool is_partial() const noexcept { return kind_ == Kind::kPartial; }
  constexpr bool is_partial(PartialOp op) const noexcept { return is_partial() && op_ == op; }
  constexpr bool is_flat_shard() const noexcept { return kind_ == Kind::kFlatShard; }

  /// The dim that Shard cuts; -1 of the others.
  constexpr int dim() const noexcept { return dim_; }
  /// Which cut of that dim this is, 0 first; -1 where the order of the axes says it.
  constexpr int level() const noexcept { return level_; }
  constexpr PartialOp op() const noexcept { return op_; }

  /// The ranges of FlatShard, by coordinate; none of the others. They live as long as the process:
  /// equal lists are kept once, which is what makes placements cheap to compare.
  const std::vector<FlatRange>& ranges() const noexcept;

  /// `Shard(0)`, `Shard(1, level 1)`, `Replicate`, `Partial(sum)`, `FlatShard(0+12, 12+11)`.
  std::string to_string() const;

  constexpr bool operator==(const Placement&) const = default;
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
  const std::vector<FlatRange>* ranges_ = nullptr;  // interned
};

/// `sum`, `average`, `maximum`, `minimum` or `product`.
const char* to_string(PartialOp op);

}  // namespace trireme

template <>
struct std::hash<trireme::Placement> {
  std::size_t operator()(const trireme::Placement& placement) const noexcept {
    return placement.hash();
  }
};

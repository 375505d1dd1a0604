// SPDX-License-Identifier: Apache-2.0
// Shards: the part of the samples that one rank loads.
#pragma once

#include <cstdint>

namespace trireme::data {

/// How samples are divided if the number of shards does not divide the number of samples.
enum class Remainder {
  /// All shards have the same size, rounded up: the first samples of the order are used twice. For
  /// training.
  kWrap,
  /// All shards have the same size, rounded down: the last samples of the order are left out.
  kDrop,
  /// The first shards have one sample more, so each sample is used exactly once. For evaluation.
  kUneven,
};

/// How the samples are divided among the shards.
enum class Partition {
  /// The samples at index, index + count, index + 2 count, and so on.
  kStrided,
  /// One contiguous piece of the order: the piece with number `index`.
  kContiguous,
};

/// One of `count` parts of the samples, in their shuffled order.
struct Shard {
  /// The number of this shard, in [0, count); usually the rank.
  std::int64_t index = 0;
  /// The number of shards; usually the number of ranks.
  std::int64_t count = 1;
  /// How samples that do not divide evenly are treated.
  Remainder remainder = Remainder::kWrap;
  /// How the samples are divided.
  Partition partition = Partition::kStrided;
};

/// Returns the size of the shard. It can be 0 with Remainder::kDrop and Remainder::kUneven.
std::int64_t shard_size(std::int64_t samples, const Shard& shard);

/// Returns the position in the order, from 0 to samples - 1, of the i-th sample of the shard, where
/// i is in [0, shard_size()).
std::int64_t shard_place(std::int64_t samples, const Shard& shard, std::int64_t i);

}  // namespace trireme::data

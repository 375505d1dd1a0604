// SPDX-License-Identifier: Apache-2.0
// Which part of the samples one rank loads.
#pragma once

#include <cstdint>

namespace trireme::data {

/// What happens where the number of shards does not divide the number of samples.
enum class Remainder {
  kWrap,    ///< Shards are equal, rounded up: the first samples of the order come again. For
            ///< training.
  kDrop,    ///< Shards are equal, rounded down: the last samples of the order are left out.
  kUneven,  ///< The first shards have one sample more, so that each sample comes exactly once. For
            ///< evaluation.
};

/// Which samples of the order belong to one shard.
enum class Partition {
  kStrided,     ///< those at index, index + count, index + 2 count, ...
  kContiguous,  ///< the index-th piece of those that stand one after the other
};

/// Part `index` of `count` of the order of samples.
struct Shard {
  std::int64_t index = 0;
  std::int64_t count = 1;
  Remainder remainder = Remainder::kWrap;
  Partition partition = Partition::kStrided;
};

/// Returns how many of `samples` samples the shard has; 0 is possible under kDrop and kUneven.
std::int64_t shard_size(std::int64_t samples, const Shard& shard);

/// Returns the place in the order, 0 to samples - 1, of the shard's sample number i, which is 0 to
/// shard_size() - 1.
std::int64_t shard_place(std::int64_t samples, const Shard& shard, std::int64_t i);

}  // namespace trireme::data

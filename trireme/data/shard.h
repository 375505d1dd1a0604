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

/// Part `index` of `count`: of the order of samples, the ones at index, index + count, index + 2
/// count, ...
struct Shard {
  std::int64_t index = 0;
  std::int64_t count = 1;
  Remainder remainder = Remainder::kWrap;
};

/// Returns how many of `samples` samples the shard has; 0 is possible under kDrop and kUneven.
std::int64_t shard_size(std::int64_t samples, const Shard& shard);

}  // namespace trireme::data

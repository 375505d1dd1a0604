// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/shard.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::data {

std::int64_t shard_size(std::int64_t samples, const Shard& shard) {
  switch (shard.remainder) {
    case Remainder::kWrap:
      return (samples + shard.count - 1) / shard.count;
    case Remainder::kDrop:
      return samples / shard.count;
    case Remainder::kUneven:
      return (samples - shard.index + shard.count - 1) / shard.count;
  }
  throw InternalError("an unknown kind of remainder",
                      "this is a defect in Trireme; please report it");
}

std::int64_t shard_place(std::int64_t samples, const Shard& shard, std::int64_t i) {
  if (shard.partition == Partition::kStrided) return (shard.index + i * shard.count) % samples;
  // Contiguous pieces have equal sizes, except that with kUneven the first `samples % count` have
  // one more.
  std::int64_t begin = shard.index * shard_size(samples, shard);
  if (shard.remainder == Remainder::kUneven) {
    begin = shard.index * (samples / shard.count) + std::min(shard.index, samples % shard.count);
  }
  return (begin + i) % samples;
}

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/shard.h>

#include "batches.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

namespace trireme::data {
namespace {

using testing::count_to;
using ::testing::ElementsAre;
using testing::Numbers;
using testing::rows_of;

// The samples of every shard.
std::vector<Numbers> shards_of(std::int64_t samples, std::int64_t count, Remainder remainder,
                               Partition partition) {
  std::vector<Numbers> shards;
  for (std::int64_t index = 0; index < count; ++index) {
    const Shard shard{index, count, remainder, partition};
    Numbers& places = shards.emplace_back();
    for (std::int64_t i = 0; i < shard_size(samples, shard); ++i)
      places.push_back(shard_place(samples, shard, i));
  }
  return shards;
}

TEST(ContiguousShard, TakesOnePieceOfTheOrder) {
  const auto contiguous = [](Remainder remainder) {
    return shards_of(5, 3, remainder, Partition::kContiguous);
  };
  EXPECT_THAT(contiguous(Remainder::kWrap),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{4, 0}));
  EXPECT_THAT(contiguous(Remainder::kDrop), ElementsAre(Numbers{0}, Numbers{1}, Numbers{2}));
  EXPECT_THAT(contiguous(Remainder::kUneven),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{4}));
}

TEST(ContiguousShard, IsAPieceOfTheShuffledOrder) {
  const auto all = DataLoader(count_to(7)).shuffle(5);
  const Numbers order = rows_of(all, 2);
  const auto second = DataLoader(all).shard({1, 2, Remainder::kUneven, Partition::kContiguous});
  EXPECT_EQ(rows_of(second, 2), Numbers(order.begin() + 4, order.end()));
}

TEST(Shard, HasEverySampleAsOftenAsItsRemainderSays) {
  for (const Partition partition : {Partition::kStrided, Partition::kContiguous}) {
    for (std::int64_t samples = 1; samples < 12; ++samples) {
      for (std::int64_t count = 1; count < 6; ++count) {
        for (const Remainder remainder : {Remainder::kWrap, Remainder::kDrop, Remainder::kUneven}) {
          std::map<std::int64_t, std::int64_t> times;
          std::int64_t total = 0;
          for (const Numbers& shard : shards_of(samples, count, remainder, partition)) {
            total += std::ssize(shard);
            for (const std::int64_t place : shard) {
              ASSERT_TRUE(place >= 0 && place < samples);
              ++times[place];
            }
          }
          const std::int64_t whole = samples / count * count;
          const std::int64_t rounded_up = (samples + count - 1) / count * count;
          const std::int64_t expected = remainder == Remainder::kDrop   ? whole
                                        : remainder == Remainder::kWrap ? rounded_up
                                                                        : samples;
          EXPECT_EQ(total, expected);
          EXPECT_EQ(std::ssize(times), std::min(expected, samples)) << samples << " in " << count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::data

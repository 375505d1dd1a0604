// SPDX-License-Identifier: Apache-2.0
#include "batches.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <map>
#include <set>

namespace trireme::data {
namespace {

using test::message_of;
using testing::count_to;
using ::testing::HasSubstr;
using ::testing::Key;
using testing::Numbers;
using testing::rows_of;
using ::testing::UnorderedElementsAre;

TEST(ShuffleBuffer, MovesNoSampleForwardByMoreThanItsSize) {
  for (const std::int64_t buffer : {1, 2, 7, 40, 100}) {
    const Numbers order = rows_of(DataLoader(count_to(40)).shuffle_buffer(buffer, 3));
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 40U);
    for (std::int64_t i = 0; i < 40; ++i)
      EXPECT_LT(order[static_cast<std::size_t>(i)], i + buffer) << "a buffer of " << buffer;
  }
}

TEST(ShuffleBuffer, LeavesTheOrderWhereItHoldsOneSample) {
  EXPECT_EQ(rows_of(DataLoader(count_to(5)).shuffle_buffer(1)), (Numbers{0, 1, 2, 3, 4}));
}

TEST(ShuffleBuffer, ChangesWithSeedEpochAndRepetition) {
  const auto loader = DataLoader(count_to(50)).shuffle_buffer(10, 3).repeat(2);
  const Numbers epoch = rows_of(loader);
  EXPECT_EQ(rows_of(loader), epoch);
  EXPECT_NE(Numbers(epoch.begin(), epoch.begin() + 50), Numbers(epoch.begin() + 50, epoch.end()));
  EXPECT_NE(rows_of(loader, 1), epoch);
  EXPECT_NE(rows_of(DataLoader(loader).shuffle_buffer(10, 4)), epoch);
}

TEST(ShuffleBuffer, GivesEachOfItsSamplesEquallyOften) {
  std::map<Numbers, int> counts;
  const auto loader = DataLoader(count_to(3)).shuffle_buffer(2, 1);
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) ++counts[rows_of(loader, epoch)];
  EXPECT_THAT(counts, UnorderedElementsAre(Key(Numbers{0, 1, 2}), Key(Numbers{0, 2, 1}),
                                           Key(Numbers{1, 0, 2}), Key(Numbers{1, 2, 0})));
  for (const auto& [order, count] : counts)
    EXPECT_NEAR(count, 1000, 110);  // four standard deviations
}

TEST(ShuffleBuffer, MakesEachOrderEquallyLikelyWhereItHoldsAll) {
  std::map<Numbers, int> counts;
  const auto loader = DataLoader(count_to(3)).shuffle_buffer(3, 1);
  for (std::int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[rows_of(loader, epoch)];
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 120);
}

TEST(ShuffleBuffer, IsReplacedByTheLaterCall) {
  const auto whole = DataLoader(count_to(20)).shuffle(1);
  EXPECT_EQ(rows_of(DataLoader(count_to(20)).shuffle_buffer(2).shuffle(1)), rows_of(whole));
  EXPECT_EQ(rows_of(DataLoader(whole).shuffle_buffer(1)), rows_of(DataLoader(count_to(20))));
}

TEST(ShuffleBuffer, IsSharedAmongShards) {
  const auto loader = DataLoader(count_to(10)).shuffle_buffer(4, 7);
  const Numbers order = rows_of(loader, 3);
  const Numbers half = rows_of(DataLoader(loader).shard({.index = 1, .count = 2}), 3);
  EXPECT_EQ(half, (Numbers{order[1], order[3], order[5], order[7], order[9]}));
}

TEST(ShuffleBuffer, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(
      DataLoader(count_to(11)).shuffle_buffer(4, 7).batch(3).repeat(2), 1);
}

TEST(ShuffleBuffer, RefusesASizeBelowOne) {
  EXPECT_THAT(message_of<UsageError>([] { DataLoader(count_to(3)).shuffle_buffer(0); }),
              HasSubstr("samples in the shuffle buffer is 0"));
}

}  // namespace
}  // namespace trireme::data

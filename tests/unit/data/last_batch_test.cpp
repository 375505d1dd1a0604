// SPDX-License-Identifier: Apache-2.0
// Batches that are filled up: LastBatch::kPad.
#include "batches.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::data {
namespace {

using testing::all_of;
using testing::batches_of;
using testing::count_to;
using ::testing::ElementsAre;
using testing::Numbers;
using testing::numbers_of;

TEST(PaddedLastBatch, RepeatsTheFirstSamplesOfThePass) {
  const auto loader = DataLoader(count_to(5)).batch(3, LastBatch::kPad);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 1, 2}, Numbers{3, 4, 0}));
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(loader.samples(), 5);
  const auto batches = all_of(*loader.open(0));
  EXPECT_EQ(batches[0].padded_rows, 0);
  EXPECT_EQ(batches[1].padded_rows, 1);
  EXPECT_EQ(batches[1].rows(), 3);
  EXPECT_EQ(batches[1].valid_rows(), 2);
}

TEST(PaddedLastBatch, RepeatsThemAsOftenAsNeeded) {
  EXPECT_THAT(batches_of(DataLoader(count_to(2)).batch(5, LastBatch::kPad)),
              ElementsAre(Numbers{0, 1, 0, 1, 0}));
}

TEST(PaddedLastBatch, IsTheSameWhereNothingIsMissing) {
  const auto batches = all_of(*DataLoader(count_to(4)).batch(2, LastBatch::kPad).open(0));
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[1].padded_rows, 0);
}

TEST(PaddedLastBatch, GivesAllShardsTheSameBatchesAndCountsEachSampleOnce) {
  for (const Partition partition : {Partition::kStrided, Partition::kContiguous}) {
    for (std::int64_t samples = 1; samples < 14; ++samples) {
      for (std::int64_t count = 1; count < 5; ++count) {
        const std::int64_t batches = (samples + count * 3 - 1) / (count * 3);
        Numbers counted;
        for (std::int64_t index = 0; index < count; ++index) {
          const auto loader = DataLoader(count_to(samples))
                                  .shard({index, count, Remainder::kUneven, partition})
                                  .batch(3, LastBatch::kPad);
          EXPECT_EQ(loader.batches(), batches);
          std::int64_t own = 0;
          for (const Batch& batch : all_of(*loader.open(0))) {
            EXPECT_EQ(batch.rows(), 3);
            own += batch.valid_rows();
            for (const std::int64_t number : numbers_of(batch.without_padding()["x"]))
              counted.push_back(number);
          }
          EXPECT_EQ(loader.samples(), own);
        }
        std::ranges::sort(counted);
        EXPECT_EQ(counted, numbers_of(at::arange(samples))) << samples << " in " << count;
      }
    }
  }
}

TEST(PaddedLastBatch, IsAllPaddingWhereAShardHasNothingLeft) {
  const auto loader = DataLoader(count_to(5))
                          .shard({1, 2, Remainder::kUneven})
                          .batch(2, LastBatch::kPad);  // the other shard has three samples
  const auto batches = all_of(*loader.open(0));
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(numbers_of(batches[1]["x"]), (Numbers{1, 3}));
  EXPECT_EQ(batches[1].valid_rows(), 0);
}

TEST(PaddedLastBatch, TakesASampleOfAnotherShardWhereThisOneHasNone) {
  const auto loader =
      DataLoader(count_to(2)).shard({2, 3, Remainder::kUneven}).batch(2, LastBatch::kPad);
  const auto batches = all_of(*loader.open(0));
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].valid_rows(), 0);
  EXPECT_EQ(batches[0].rows(), 2);
  EXPECT_EQ(loader.samples(), 0);
}

TEST(PaddedLastBatch, CountsTheSamplesThatAShardWraps) {
  const auto batches =
      all_of(*DataLoader(count_to(5)).shard({1, 2}).batch(2, LastBatch::kPad).open(0));
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(numbers_of(batches[1]["x"]), (Numbers{0, 1}));  // 0 is wrapped, 1 padded
  EXPECT_EQ(batches[1].padded_rows, 1);
}

TEST(PaddedLastBatch, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(DataLoader(count_to(11))
                                                   .shuffle(7)
                                                   .shard({1, 2, Remainder::kUneven})
                                                   .batch(3, LastBatch::kPad)
                                                   .repeat(2),
                                               1);
}

}  // namespace
}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// Batches of samples of about the same length.
#include "batches.h"
#include <trireme/base/error.h>
#include <trireme/data/buckets.h>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

namespace trireme::data {
namespace {

using test::message_of;
using testing::all_of;
using testing::batches_of;
using testing::count_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::numbers_of;

const Numbers kLengths{1, 4, 2, 6, 1, 4, 9};
const Buckets kBuckets{.boundaries = {3, 5}, .rows = {2, 2, 1}};  // samples 0 2 4, 1 5 and 3 6

DataLoader bucketed(LastBatch last = LastBatch::kKeep, Shard shard = {}) {
  return DataLoader(count_to(7)).bucket(kLengths, kBuckets, last).shard(shard);
}

TEST(Bucket, MakesABatchWhereABucketIsFull) {
  EXPECT_THAT(batches_of(bucketed()),
              ElementsAre(Numbers{0, 2}, Numbers{3}, Numbers{1, 5}, Numbers{6}, Numbers{4}));
  EXPECT_EQ(bucketed().batches(), 5);
  EXPECT_EQ(bucketed().samples(), 7);
}

TEST(Bucket, DropsOrPadsWhatIsLeft) {
  EXPECT_THAT(batches_of(bucketed(LastBatch::kDrop)),
              ElementsAre(Numbers{0, 2}, Numbers{3}, Numbers{1, 5}, Numbers{6}));
  EXPECT_EQ(bucketed(LastBatch::kDrop).samples(), 6);
  const auto padded = all_of(*bucketed(LastBatch::kPad).open(0));
  ASSERT_EQ(padded.size(), 5U);
  EXPECT_EQ(numbers_of(padded[4]["x"]), (Numbers{4, 4}));
  EXPECT_EQ(padded[4].padded_rows, 1);
  EXPECT_EQ(bucketed(LastBatch::kPad).samples(), 7);
}

TEST(Bucket, SharesEachBucketAmongTheRanks) {
  EXPECT_THAT(batches_of(bucketed(LastBatch::kKeep, {0, 2})),
              ElementsAre(Numbers{3}, Numbers{0, 4}, Numbers{1}));
  EXPECT_THAT(batches_of(bucketed(LastBatch::kKeep, {1, 2})),
              ElementsAre(Numbers{6}, Numbers{2, 0}, Numbers{5}));
  EXPECT_THAT(batches_of(bucketed(LastBatch::kKeep, {1, 2, Remainder::kUneven})),
              ElementsAre(Numbers{6}, Numbers{2}, Numbers{5}));
  EXPECT_THAT(batches_of(bucketed(LastBatch::kKeep, {1, 2, Remainder::kDrop})),
              ElementsAre(Numbers{6}, Numbers{2}, Numbers{5}));
}

std::size_t bucket_of(std::int64_t length) {
  return length < kBuckets.boundaries[0] ? 0 : length < kBuckets.boundaries[1] ? 1 : 2;
}

// Many lengths, over ranks: who has how many batches, and what is in them.
class SharedBuckets : public ::testing::TestWithParam<LastBatch> {
 protected:
  static constexpr std::int64_t kSamples = 83;

  static Numbers lengths() {
    Numbers lengths;
    for (std::int64_t i = 0; i < kSamples; ++i) lengths.push_back(i * 37 % 11);
    return lengths;
  }
  static DataLoader part(Shard shard) {
    return DataLoader(count_to(kSamples))
        .shuffle(3)
        .bucket(lengths(), {.boundaries = {3, 5}, .rows = {4, 3, 2}}, GetParam())
        .shard(shard);
  }
};

INSTANTIATE_TEST_SUITE_P(Last, SharedBuckets,
                         ::testing::Values(LastBatch::kKeep, LastBatch::kDrop, LastBatch::kPad));

TEST_P(SharedBuckets, GiveAllRanksABatchOfTheSameBucketInEveryStep) {
  for (const Remainder remainder : {Remainder::kWrap, Remainder::kDrop, Remainder::kUneven}) {
    if (remainder == Remainder::kUneven && GetParam() == LastBatch::kKeep) continue;
    for (const std::int64_t count : {1, 2, 3, 8}) {
      std::vector<std::vector<std::size_t>> buckets;
      for (std::int64_t index = 0; index < count; ++index) {
        const DataLoader loader = part({index, count, remainder});
        const auto batches = batches_of(loader, 2);
        EXPECT_EQ(std::ssize(batches), loader.batches());
        auto& own = buckets.emplace_back();
        for (const Numbers& batch : batches) {
          own.push_back(bucket_of(batch[0] * 37 % 11));
          for (const std::int64_t sample : batch)
            EXPECT_EQ(bucket_of(sample * 37 % 11), own.back());
        }
      }
      for (const auto& own : buckets) EXPECT_EQ(own, buckets[0]);
    }
  }
}

TEST_P(SharedBuckets, CountEachSampleAtMostOnceWhereShardsAreUneven) {
  for (const std::int64_t count : {1, 2, 3, 8}) {
    std::map<std::int64_t, int> times;
    std::int64_t samples = 0;
    for (std::int64_t index = 0; index < count; ++index) {
      const DataLoader loader = part({index, count, Remainder::kUneven});
      samples += loader.samples();
      for (const Batch& batch : all_of(*loader.open(0))) {
        for (const std::int64_t sample : numbers_of(batch.without_padding()["x"]))
          EXPECT_EQ(++times[sample], 1);
      }
    }
    EXPECT_EQ(std::ssize(times), samples);
    if (GetParam() != LastBatch::kDrop) {
      EXPECT_EQ(samples, kSamples);
    }
  }
}

TEST_P(SharedBuckets, GiveTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(part({.index = 1, .count = 2}).repeat(2), 1);
}

TEST(Bucket, IsReplacedByTheLaterBatch) {
  EXPECT_THAT(batches_of(bucketed().batch(4)), ElementsAre(Numbers{0, 1, 2, 3}, Numbers{4, 5, 6}));
}

TEST(Bucket, RefusesSettingsThatDoNotFit) {
  const auto refusal = [](const Numbers& lengths, const Buckets& buckets) {
    return message_of<UsageError>([&] { DataLoader(count_to(7)).bucket(lengths, buckets); });
  };
  EXPECT_THAT(refusal({1, 2}, kBuckets), HasSubstr("buckets by 2 lengths of 7 samples"));
  EXPECT_THAT(refusal(kLengths, {{5, 5}, {1, 1, 1}}), HasSubstr("do not ascend"));
  EXPECT_THAT(refusal(kLengths, {{5}, {1}}), HasSubstr("1 numbers of rows for 2 buckets"));
  EXPECT_THAT(refusal(kLengths, {{5}, {1, 0}}), HasSubstr("rows of a bucket's batch is 0"));
}

TEST(Bucket, RefusesBatchesThatNoBucketFills) {
  const auto loader = DataLoader(count_to(7)).bucket(kLengths, {{5}, {8, 9}}, LastBatch::kDrop);
  EXPECT_THAT(message_of<UsageError>([&] { (void)loader.batches(); }),
              HasSubstr("not one batch: the batches of the buckets have 8, 9 rows, but shard 0 of "
                        "1 has 7 of the 7 samples"));
}

TEST(Lengths, AreThoseOfAColumn) {
  const auto set = generator(3, {"y", "x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({1}), at::zeros({2, index + 1})};
  });
  EXPECT_EQ(lengths(*set, "x", 1), (Numbers{1, 2, 3}));
  EXPECT_EQ(lengths(*set, "x", -1), (Numbers{1, 2, 3}));
  EXPECT_EQ(lengths(*set, "x"), (Numbers{2, 2, 2}));
  EXPECT_EQ(lengths(*tensors({{"x", at::zeros({2, 5})}}), "x"), (Numbers{5, 5}));
}

TEST(Lengths, AreWhatAFunctionSays) {
  EXPECT_EQ(lengths(*count_to(3),
                    [](const std::vector<at::Tensor>& sample) {
                      return 10 * sample[0].item<std::int64_t>();
                    }),
            (Numbers{0, 10, 20}));
}

TEST(Lengths, RefuseWhatIsNotThere) {
  EXPECT_THAT(message_of<UsageError>([] { (void)lengths(*count_to(3), "y"); }),
              HasSubstr("no column 'y'"));
  EXPECT_THAT(message_of<UsageError>([] { (void)lengths(*count_to(3), "x"); }),
              HasSubstr("column 'x' has samples [], which have no dimension 0"));
  EXPECT_THAT(message_of<UsageError>([] {
                (void)lengths(*count_to(3),
                              std::function<std::int64_t(const std::vector<at::Tensor>&)>());
              }),
              HasSubstr("lengths without a function"));
}

}  // namespace
}  // namespace trireme::data

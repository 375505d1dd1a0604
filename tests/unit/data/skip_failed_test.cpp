// SPDX-License-Identifier: Apache-2.0
// Samples that cannot be loaded or transformed are skipped. Each case runs with and without
// workers.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <exception>
#include <limits>
#include <set>
#include <stdexcept>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using testing::batches_of;
using testing::count_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;

Transform fail_at(std::set<std::int64_t> bad) {
  return {"check", [bad = std::move(bad)](at::Tensor x, Random&) {
            if (bad.contains(x.item<std::int64_t>())) throw std::runtime_error("damaged");
            return x;
          }};
}

Numbers skipped_of(const BatchStream& stream) {
  Numbers samples;
  for (const SkippedSample& skipped : stream.skipped()) samples.push_back(skipped.sample);
  return samples;
}

class SkipFailed : public testing::WithWorkers {
 protected:
  static DataLoader failing_at(const std::set<std::int64_t>& bad, std::int64_t size = 10) {
    return over(DataLoader(count_to(size)).map("x", fail_at(bad)));
  }
};

INSTANTIATE_TEST_SUITE_P(Workers, SkipFailed, testing::numbers_of_workers());

TEST_P(SkipFailed, PutsTheNextGoodSampleOfTheShardInItsPlace) {
  const auto stream = failing_at({3, 7}).batch(4).skip_failed(2).open(0);
  EXPECT_THAT(batches_of(*stream),
              ElementsAre(Numbers{0, 1, 2, 4}, Numbers{4, 5, 6, 8}, Numbers{8, 9}));
  ASSERT_EQ(skipped_of(*stream), (Numbers{3, 7}));
  EXPECT_THAT(stream->skipped()[0].message,
              HasSubstr("column 'x', operation 1 (check), sample 3: damaged"));
}

TEST_P(SkipFailed, PassesOverSeveralAndAroundTheEnd) {
  const auto several = failing_at({3, 4, 5}).batch(4).skip_failed(9).open(0);
  EXPECT_THAT(batches_of(*several),
              ElementsAre(Numbers{0, 1, 2, 6}, Numbers{6, 6, 6, 7}, Numbers{8, 9}));
  EXPECT_EQ(skipped_of(*several), (Numbers{3, 4, 5}));
  const auto last = failing_at({9, 0}).batch(5).skip_failed(9).open(0);
  EXPECT_THAT(batches_of(*last), ElementsAre(Numbers{1, 1, 2, 3, 4}, Numbers{5, 6, 7, 8, 1}));
}

TEST_P(SkipFailed, LoadsNoSampleOfAnotherShard) {
  const auto stream =
      failing_at({3}).shard({.index = 1, .count = 2}).batch(3).skip_failed(1).open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{1, 5, 5}, Numbers{7, 9}));
}

TEST_P(SkipFailed, TellsWhatWasSkippedInTheBatchesSoFar) {
  const auto stream = failing_at({3, 7}).batch(4).skip_failed(2).open(0);
  EXPECT_TRUE(stream->skipped().empty());
  ASSERT_TRUE(stream->next());
  EXPECT_EQ(skipped_of(*stream), (Numbers{3}));
}

TEST_P(SkipFailed, ThrowsAtTheBatchWhereMoreFailThanMay) {
  const auto stream = failing_at({3, 7}).batch(4).skip_failed(1).open(0);
  EXPECT_TRUE(stream->next());
  try {
    stream->next();
    FAIL() << "threw nothing";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("skip_failed allows 1 failed samples in an epoch"),
                      HasSubstr("column 'x', operation 1 (check), sample 7: damaged")));
    EXPECT_THROW(std::rethrow_if_nested(error), DataError);
  }
  EXPECT_FALSE(stream->next());
  EXPECT_EQ(skipped_of(*stream), (Numbers{3}));
  EXPECT_EQ(stream->state().next_batch, 1);
}

TEST_P(SkipFailed, CountsWholeEpochsAndOneBatchAlike) {
  const auto one_batch = failing_at({1, 2, 3}).batch(10).skip_failed(2).open(0);
  EXPECT_THAT(message_of<DataError>([&] { one_batch->next(); }), HasSubstr("sample 3: damaged"));
  const auto repeated = failing_at({1}).batch(10).repeat(2).skip_failed(2).open(0);
  EXPECT_EQ(batches_of(*repeated).size(), 2U);
  EXPECT_EQ(skipped_of(*repeated), (Numbers{1, 1}));
}

TEST_P(SkipFailed, ThrowsWhereNoSampleIsGood) {
  const auto stream = failing_at({0, 1, 2}, 3).skip_failed(100).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              AllOf(HasSubstr("so did the 2 after it"), HasSubstr("sample 0: damaged")));
}

TEST_P(SkipFailed, SkipsWhatTheDataSetCannotLoad) {
  const auto set = generator(6, {"x"}, [](std::int64_t index) -> std::vector<at::Tensor> {
    if (index == 2) throw DataError("photos/2.jpeg: offset 17: not a JPEG file", "");
    return {at::scalar_tensor(index)};
  });
  const auto stream = over(DataLoader(set).batch(3).skip_failed(1)).open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{0, 1, 3}, Numbers{3, 4, 5}));
  EXPECT_THAT(stream->skipped()[0].message,
              HasSubstr("sample 2: photos/2.jpeg: offset 17: not a JPEG file"));
}

TEST_P(SkipFailed, SkipsWhatSeveralColumnsCannotMake) {
  const auto check = [](std::vector<at::Tensor> sample) {
    if (sample[0].item<std::int64_t>() == 1) throw std::runtime_error("damaged");
    return sample;
  };
  const auto stream =
      over(DataLoader(count_to(4)).map_columns({"x"}, check).batch(2).skip_failed(1)).open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{0, 2}, Numbers{2, 3}));
}

TEST_P(SkipFailed, DoesNotCountPaddedRows) {
  const auto stream = failing_at({0}, 5).batch(4, LastBatch::kPad).skip_failed(1).open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{1, 1, 2, 3}, Numbers{4, 1, 1, 2}));
  EXPECT_EQ(skipped_of(*stream), (Numbers{0}));
}

TEST_P(SkipFailed, StaysInTheBatchWhereThereAreBuckets) {
  const auto loader =
      failing_at({2, 5}, 6).bucket({1, 9, 1, 9, 1, 9}, {{5}, {3, 3}}).skip_failed(2);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 4, 4}, Numbers{1, 3, 1}));
}

TEST_P(SkipFailed, PutsPaddedSamplesInTheRightRow) {
  const auto set = generator(4, {"x"}, [](std::int64_t index) -> std::vector<at::Tensor> {
    if (index == 1) throw std::runtime_error("damaged");
    return {at::arange(index)};
  });
  const auto stream =
      over(DataLoader(set).pad("x", {.value = -1, .lengths = "n"}).batch(3).skip_failed(1)).open(0);
  const auto batch = stream->next();
  EXPECT_EQ(testing::numbers_of((*batch)["x"]), (Numbers{-1, -1, 0, 1, 0, 1}));
  EXPECT_EQ(testing::numbers_of((*batch)["n"]), (Numbers{0, 2, 2}));
}

TEST_P(SkipFailed, NeverSkipsSamplesThatDoNotGoTogether) {
  const auto set = generator(3, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({index < 2 ? 1 : 2})};
  });
  const auto stream = over(DataLoader(set).batch(3).skip_failed(5)).open(0);
  EXPECT_THAT(message_of<UsageError>([&] { stream->next(); }),
              HasSubstr("sample 2 is Float [2], but sample 0 of the same batch is Float [1]"));
}

// The one that failed was taken for the form of the whole batch.
TEST_P(SkipFailed, DoesNotTakeTheFormOfASampleThatFailed) {
  const auto set = generator(4, {"image", "x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({index == 0 ? 7 : 2}), at::scalar_tensor(index)};
  });
  for (DataLoader loader : {DataLoader(set), DataLoader(set).pad("image", {.length = 3})}) {
    const auto stream = over(loader.map("x", fail_at({0})).batch(2).skip_failed(1)).open(0);
    const auto batch = stream->next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(testing::numbers_of((*batch)["x"]), (Numbers{1, 1}));
    EXPECT_EQ((*batch)["image"].size(0), 2);
    EXPECT_EQ(skipped_of(*stream), (Numbers{0}));
  }
}

TEST_P(SkipFailed, AllowsAnyNumber) {
  const auto stream =
      failing_at({1, 2}, 4).batch(4).skip_failed(std::numeric_limits<std::int64_t>::max()).open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{0, 3, 3, 3}));
  EXPECT_EQ(skipped_of(*stream), (Numbers{1, 2}));
}

TEST_P(SkipFailed, NeverSkipsABatch) {
  const auto loader =
      over(DataLoader(count_to(3)).skip_failed(5).map_batch([](const Batch&) -> Batch {
        throw std::runtime_error("not this one");
      }));
  EXPECT_THAT(message_of<DataError>([&] { loader.open(0)->next(); }),
              HasSubstr("batch 0 of pass 0"));
}

TEST(SkippedSamples, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(DataLoader(count_to(17))
                                                   .map("x", fail_at({3, 4, 12}))
                                                   .shuffle(6)
                                                   .shard({.index = 1, .count = 2})
                                                   .batch(3)
                                                   .repeat(2)
                                                   .skip_failed(10),
                                               1);
}

TEST(SkippedSamples, ThrowsTheFirstErrorByDefault) {
  const auto loader = DataLoader(count_to(3)).map("x", fail_at({1})).batch(3);
  for (const auto& same : {loader, DataLoader(loader).skip_failed(2).skip_failed(0)}) {
    EXPECT_THAT(message_of<DataError>([&] { same.open(0)->next(); }),
                ::testing::StartsWith("column 'x', operation 1 (check), sample 1: damaged"));
  }
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(loader).skip_failed(-1); }),
              HasSubstr("number of samples to skip is -1"));
}

}  // namespace
}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// What comes out of a data loader; how it comes out (threads, errors, the end) is in
// stream_test.cpp.
#include <trireme/data/data_loader.h>

#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <set>

namespace trireme::data {
namespace {

using test::message_of;
using testing::batches_of;
using testing::count_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::numbers_of;
using testing::rows_of;

TEST(DataLoader, GivesTheSamplesInOrderByDefault) {
  const auto loader = DataLoader(count_to(5)).batch(2);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{4}));
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(loader.samples(), 5);
}

TEST(DataLoader, DropsTheLastBatchWhereAsked) {
  const auto loader = DataLoader(count_to(5)).batch(2, LastBatch::kDrop);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 1}, Numbers{2, 3}));
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(loader.samples(), 4);
}

TEST(DataLoader, EndsEachRepetitionWithItsOwnLastBatch) {
  const auto loader = DataLoader(count_to(3)).batch(2).repeat(2);
  EXPECT_THAT(batches_of(loader),
              ElementsAre(Numbers{0, 1}, Numbers{2}, Numbers{0, 1}, Numbers{2}));
  EXPECT_EQ(loader.batches(), 4);
}

// The samples of a data set that counts are their own numbers.
TEST(DataLoader, NamesTheSamplesOfABatchWithoutLoadingThem) {
  const auto plain =
      DataLoader(count_to(11)).batch(2).repeat(2).shuffle(3).shard({.index = 1, .count = 2});
  const std::vector<std::int64_t> lengths = {1, 9, 1, 9, 1, 9, 1, 9, 1, 9, 1};
  const auto buckets = DataLoader(count_to(11))
                           .shuffle(4)
                           .bucket(lengths, {.boundaries = {5}, .rows = {3, 2}}, LastBatch::kKeep);
  const auto padded = DataLoader(count_to(5)).batch(3, LastBatch::kPad);
  for (const DataLoader& loader : {plain, buckets, padded}) {
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      const auto stream = loader.open(epoch);
      std::int64_t number = 0;
      while (const auto batch = stream->next()) {
        EXPECT_EQ(loader.samples_of(epoch, number++), numbers_of(batch->without_padding()["x"]));
      }
      EXPECT_EQ(number, loader.batches());
      EXPECT_TRUE(loader.samples_of(epoch, number).empty());
    }
  }
  EXPECT_THAT(message_of<UsageError>([&] { static_cast<void>(plain.samples_of(0, -1)); }),
              HasSubstr("the batch is -1"));
}

TEST(DataLoader, IsACheapValue) {
  const auto all = DataLoader(count_to(4)).batch(4);
  const auto half = DataLoader(all).shard({.index = 1, .count = 2});
  EXPECT_EQ(rows_of(all), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(rows_of(half), (Numbers{1, 3}));
}

TEST(DataLoader, SplitsBatchesSoThatPartsMakeUpOne) {
  const DataLoader whole = DataLoader(count_to(26)).shuffle(3).batch(8);
  const auto batch = batches_of(whole).front();
  const DataLoader parts = DataLoader(whole).split_batches(4);
  const auto of_parts = batches_of(parts);
  EXPECT_EQ(of_parts.size(), 13U);
  Numbers joined;
  for (std::size_t i = 0; i < 4; ++i) {
    joined.insert(joined.end(), of_parts[i].begin(), of_parts[i].end());
  }
  EXPECT_EQ(joined, batch);
  // Two parts of two shards each are the same rows in another order.
  Numbers of_shards;
  for (const int shard : {0, 1}) {
    const auto own = batches_of(DataLoader(parts).shard({.index = shard, .count = 2}));
    for (std::size_t i = 0; i < 2; ++i)
      of_shards.insert(of_shards.end(), own[i].begin(), own[i].end());
  }
  EXPECT_THAT(of_shards, ::testing::UnorderedElementsAreArray(batch));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(whole).split_batches(3); }),
              HasSubstr("batches of 8 rows cannot be divided into 3 equal parts"));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(count_to(26)).split_batches(2); }),
              HasSubstr("without a batch size cannot be divided"));
}

// Their products were computed beyond the largest integer.
TEST(DataLoader, RefusesNumbersThatNoProductHolds) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const auto refusal = [](const auto& change) {
    DataLoader loader = DataLoader(count_to(3));
    return message_of<UsageError>([&] { change(loader); });
  };
  const std::string expected = " is 9223372036854775807, expected at most 2147483647";
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.batch(kLargest); }),
              HasSubstr("the number of rows of a batch" + expected));
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.repeat(kLargest); }),
              HasSubstr("the number of repetitions" + expected));
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.shard({0, kLargest}); }),
              HasSubstr("the number of shards" + expected));
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.open(kLargest); }),
              HasSubstr("the epoch" + expected));
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.pad("x", {.multiple = kLargest}); }),
              HasSubstr("the multiple of padding" + expected));
  EXPECT_THAT(refusal([](DataLoader& loader) { loader.bucket({1, 2, 3}, {{}, {kLargest}}); }),
              HasSubstr("the number of rows of a bucket's batch" + expected));
}

class Stored final : public Dataset {
 public:
  Stored(std::vector<std::string> names, std::vector<at::Tensor> columns)
      : names_(std::move(names)), columns_(std::move(columns)) {}
  std::int64_t size() const override { return 3; }
  const std::vector<std::string>& columns() const override { return names_; }
  const std::vector<at::Tensor>& stored() const override { return columns_; }
  std::vector<at::Tensor> get(std::int64_t index) const override { return {columns_[0][index]}; }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> columns_;
};

// Other memory was read.
TEST(DataLoader, RefusesStoredColumnsThatAreNotWhatTheyMustBe) {
  const auto refusal = [](const std::vector<at::Tensor>& columns) {
    const std::vector<std::string> names{"x"};
    return message_of<UsageError>([&] { DataLoader(std::make_shared<Stored>(names, columns)); });
  };
  EXPECT_NO_THROW(DataLoader(std::make_shared<Stored>(std::vector<std::string>{"x"},
                                                      std::vector<at::Tensor>{at::zeros({3})})));
  EXPECT_THAT(refusal({at::zeros({3}), at::zeros({3})}),
              HasSubstr("Dataset::stored() has 2 tensors, expected 1: 'x'"));
  EXPECT_THAT(refusal({at::zeros({2, 4})}),
              HasSubstr("has for column 'x' Float [2, 4], expected a contiguous CPU tensor of 3"));
  EXPECT_THAT(refusal({at::zeros({4, 3}).t()}), HasSubstr("Float [3, 4]"));
  EXPECT_THAT(refusal({at::Tensor()}), HasSubstr("'x' no tensor"));
}

TEST(DataLoader, RefusesADataSetWithoutNamesOfItsOwn) {
  const auto refusal = [](const std::vector<std::string>& names) {
    return message_of<UsageError>(
        [&] { DataLoader(std::make_shared<Stored>(names, std::vector<at::Tensor>())); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("without columns"));
  EXPECT_THAT(refusal({"x", "x"}), HasSubstr("the column 'x' is there twice"));
}

TEST(DataLoader, StacksSamplesOfAnyShape) {
  const auto stream =
      DataLoader(tensors({{"x", at::arange(24).view({4, 3, 2})}, {"y", at::arange(4)}}))
          .batch(3)
          .open(0);
  const auto batch = stream->next();
  EXPECT_TRUE(at::equal((*batch)["x"], at::arange(18).view({3, 3, 2})));
  EXPECT_EQ((*batch)["y"].sizes(), (Numbers{3}));
  EXPECT_EQ(batch->rows(), 3);
}

TEST(Shuffle, IsAPermutationThatChangesWithSeedEpochAndRepetition) {
  const auto loader = DataLoader(count_to(50)).batch(7).shuffle(3).repeat(2);
  Numbers epoch = rows_of(loader);
  const Numbers first(epoch.begin(), epoch.begin() + 50);
  const Numbers second(epoch.begin() + 50, epoch.end());
  EXPECT_NE(first, second);
  EXPECT_NE(rows_of(loader, 1), epoch);
  EXPECT_NE(rows_of(DataLoader(loader).shuffle(4)), epoch);
  EXPECT_EQ(rows_of(loader), epoch);
  for (const Numbers& pass : {first, second}) {
    EXPECT_EQ(std::set<std::int64_t>(pass.begin(), pass.end()).size(), 50U);
  }
  // Epoch 1 of one repetition is repetition 1 of epoch 0: only the number of the pass counts.
  EXPECT_EQ(rows_of(DataLoader(count_to(50)).shuffle(3), 1), second);
}

TEST(Shuffle, MakesEachOrderEquallyLikely) {
  std::map<Numbers, int> counts;
  const auto loader = DataLoader(count_to(3)).shuffle(1);
  for (std::int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[rows_of(loader, epoch)];
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts)
    EXPECT_NEAR(count, 1000, 120);  // four standard deviations
}

TEST(StridedShard, TakesEveryCountthSampleOfTheSharedOrder) {
  const Numbers all = rows_of(DataLoader(count_to(12)).shuffle(9), 5);
  for (std::int64_t index = 0; index < 3; ++index) {
    Numbers expected;
    for (std::size_t i = static_cast<std::size_t>(index); i < 12; i += 3)
      expected.push_back(all[i]);
    EXPECT_EQ(rows_of(DataLoader(count_to(12)).shuffle(9).shard({.index = index, .count = 3}), 5),
              expected);
  }
}

TEST(StridedShard, PadsByWrappingWhenSizeDoesNotDivide) {
  EXPECT_EQ(rows_of(DataLoader(count_to(5)).shard({.index = 0, .count = 3})), (Numbers{0, 3}));
  EXPECT_EQ(rows_of(DataLoader(count_to(5)).shard({.index = 1, .count = 3})), (Numbers{1, 4}));
  EXPECT_EQ(rows_of(DataLoader(count_to(5)).shard({.index = 2, .count = 3})), (Numbers{2, 0}));
  const Numbers order = rows_of(DataLoader(count_to(5)).shuffle(2));
  EXPECT_EQ(rows_of(DataLoader(count_to(5)).shuffle(2).shard({.index = 2, .count = 3})),
            (Numbers{order[2], order[0]}));
}

TEST(StridedShard, WrapsMoreThanOnceWhereThereAreMoreShardsThanSamples) {
  EXPECT_EQ(rows_of(DataLoader(count_to(2)).shard({.index = 4, .count = 5})), (Numbers{0}));
}

TEST(StridedShard, DropsOrIsUnevenWhereAsked) {
  std::vector<Numbers> dropped;
  std::vector<Numbers> uneven;
  for (std::int64_t index = 0; index < 3; ++index) {
    dropped.push_back(rows_of(DataLoader(count_to(5)).shard({index, 3, Remainder::kDrop})));
    uneven.push_back(rows_of(DataLoader(count_to(5)).shard({index, 3, Remainder::kUneven})));
  }
  EXPECT_THAT(dropped, ElementsAre(Numbers{0}, Numbers{1}, Numbers{2}));
  EXPECT_THAT(uneven, ElementsAre(Numbers{0, 3}, Numbers{1, 4}, Numbers{2}));
}

TEST(StridedShard, MayBeEmptyWhenUneven) {
  const auto loader = DataLoader(count_to(2)).shard({2, 3, Remainder::kUneven}).batch(4);
  EXPECT_EQ(loader.batches(), 0);
  EXPECT_FALSE(loader.open(0)->next());
}

TEST(StridedShard, LoadsNoSampleOfAnotherRank) {
  std::set<std::int64_t> loaded;
  const auto set = generator(10, {"x"}, [&](std::int64_t index) {
    loaded.insert(index);
    return std::vector<at::Tensor>{at::scalar_tensor(index)};
  });
  rows_of(DataLoader(set).shard({.index = 1, .count = 2}).batch(2));
  EXPECT_THAT(loaded, ElementsAre(1, 3, 5, 7, 9));
}

TEST(Map, AppliesOperationsInTheOrderOfTheCalls) {
  const auto loader = DataLoader(count_to(3))
                          .map("x", rescale(2))
                          .map("x", [](at::Tensor x) { return x + 1; })
                          .map("x", rescale(10))
                          .map("x", type_cast(at::kInt))
                          .batch(3);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{10, 30, 50}));
}

TEST(Map, LeavesOtherColumnsAndTheDataSetAlone) {
  const at::Tensor x = at::arange(3);
  const auto batch = DataLoader(tensors({{"x", x}, {"y", x}}))
                         .map("x", [](at::Tensor sample) { return sample.add_(5); })
                         .batch(3)
                         .open(0)
                         ->next();
  EXPECT_EQ(numbers_of((*batch)["x"]), (Numbers{5, 6, 7}));
  EXPECT_EQ(numbers_of((*batch)["y"]), (Numbers{0, 1, 2}));
  EXPECT_EQ(numbers_of(x), (Numbers{0, 1, 2}));
}

TEST(Map, ListsTheColumnsWhereTheNameIsUnknown) {
  EXPECT_THAT(message_of<UsageError>([] { DataLoader(count_to(3)).map("y", rescale(1)); }),
              HasSubstr("no column 'y'; the columns are 'x'"));
}

// Every setting that must not change the data, against the plain one.
TEST(DataLoader, GivesTheSameDataWithAnyNumberOfWorkersRanksAndPrefetchedBatches) {
  const std::int64_t size = 24;
  const auto noisy = [](at::Tensor x, Random& random) { return x * 1000 + random.below(1000); };
  const auto loader =
      DataLoader(count_to(size)).shuffle(1).seed(2).map("x", noisy).map("x", noisy).repeat(2);
  const Numbers expected = rows_of(loader, 3);
  for (const int prefetch : {1, 2, 5, 100}) {
    for (const int workers : {1, 2, 4}) {
      EXPECT_EQ(rows_of(DataLoader(loader).batch(3).prefetch(prefetch, workers), 3), expected);
    }
  }
  for (const std::int64_t ranks : {2, 3, 4}) {
    Numbers together(expected.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Numbers part =
          rows_of(DataLoader(loader).shard({.index = rank, .count = ranks}).batch(5), 3);
      for (std::size_t i = 0; i < part.size(); ++i) {
        together[static_cast<std::size_t>(rank) + i * static_cast<std::size_t>(ranks)] = part[i];
      }
    }
    EXPECT_EQ(together, expected) << ranks << " ranks";
  }
}

TEST(Map, DrawsOtherRandomNumbersForOtherSeedsEpochsSamplesAndOperations) {
  const auto draw = [](at::Tensor, Random& random) {
    return at::scalar_tensor(random.below(1LL << 40), at::kLong);
  };
  const auto set = tensors({{"x", at::zeros({4})}, {"y", at::zeros({4})}});
  const auto loader = DataLoader(set).map("x", draw).map("y", draw).batch(4).repeat(2);
  std::set<std::int64_t> drawn;
  for (const std::uint64_t seed : {0U, 1U}) {
    for (const std::int64_t epoch : {0, 1}) {
      const auto stream = DataLoader(loader).seed(seed).open(epoch);
      while (const auto batch = stream->next()) {
        for (const at::Tensor& column : batch->columns) {
          for (const std::int64_t number : numbers_of(column)) drawn.insert(number);
        }
      }
    }
  }
  EXPECT_EQ(drawn.size(), 2U * 2U * 2U * 2U * 4U);
}

TEST(DataLoader, ResumesInTheMiddleOfAnEpoch) {
  const auto loader = DataLoader(count_to(10)).shuffle(1).batch(3).repeat(3);
  const auto all = batches_of(loader, 2);
  for (std::int64_t first = 0; first <= loader.batches(); ++first) {
    const std::vector<Numbers> rest(all.begin() + first, all.end());
    EXPECT_EQ(batches_of(loader, 2, first), rest);
    EXPECT_EQ(batches_of(DataLoader(loader).prefetch(2, 2), 2, first), rest);
  }
}

TEST(DataLoader, RefusesABatchLargerThanTheShardWhereTheRestIsDropped) {
  const auto loader =
      DataLoader(count_to(10)).shard({.index = 1, .count = 3}).batch(5, LastBatch::kDrop);
  const std::string expected = "the batch has 5 rows, but shard 1 of 3 has 4 of the 10 samples";
  EXPECT_THAT(message_of<UsageError>([&] { (void)loader.batches(); }), HasSubstr(expected));
  EXPECT_THAT(message_of<UsageError>([&] { loader.open(0); }), HasSubstr(expected));
}

TEST(DataLoader, RefusesMoreShardsThanSamplesWhereTheRestIsDropped) {
  EXPECT_THAT(message_of<UsageError>(
                  [] { DataLoader(count_to(2)).shard({0, 3, Remainder::kDrop}).open(0); }),
              HasSubstr("shard 0 of 3 has 0 of the 2 samples"));
}

TEST(DataLoader, RefusesNumbersOutOfRange) {
  DataLoader loader(count_to(10));
  EXPECT_THAT(message_of<UsageError>([&] { loader.batch(0); }), HasSubstr("rows of a batch is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.repeat(0); }),
              HasSubstr("number of repetitions is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.prefetch(-1); }),
              HasSubstr("prefetched batches is -1"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.prefetch(2, 0); }),
              HasSubstr("number of workers is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.shard({.index = 3, .count = 3}); }),
              HasSubstr("shard 3 of 3"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.shard({.index = -1, .count = 3}); }),
              HasSubstr("shard -1 of 3"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.shard({.index = 0, .count = 0}); }),
              HasSubstr("number of shards is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.open(-1); }), HasSubstr("the epoch is -1"));
  EXPECT_THAT(message_of<UsageError>([&] { loader.open(0, 11); }),
              HasSubstr("an epoch has 10 batches"));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader{std::shared_ptr<const Dataset>()}; }),
              HasSubstr("without samples"));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader{count_to(0)}; }),
              HasSubstr("without samples"));
}

}  // namespace
}  // namespace trireme::data

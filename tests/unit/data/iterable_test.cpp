// SPDX-License-Identifier: Apache-2.0
// Samples that can only be read one after the other, against the same samples with numbers.
#include <trireme/data/iterable.h>

#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <stdexcept>
#include <utility>

namespace trireme::data {
namespace {

using test::message_of;
using testing::all_of;
using testing::batches_of;
using testing::count_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;

SampleReader counting(std::int64_t size) {
  return [next = std::int64_t{0}, size]() mutable -> std::optional<std::vector<at::Tensor>> {
    if (next == size) return std::nullopt;
    return std::vector<at::Tensor>{at::scalar_tensor(next++, at::kLong)};
  };
}

std::shared_ptr<const IterableDataset> read_to(std::int64_t size, bool says_size = false) {
  return iterable(
      {"x"}, [size](std::int64_t) { return counting(size); },
      says_size ? std::optional(size) : std::nullopt);
}

TEST(Iterable, GivesItsSamplesInOrder) {
  EXPECT_THAT(batches_of(DataLoader(read_to(5)).batch(2)),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{4}));
}

// Everything that both kinds of data sets can do.
TEST(Iterable, GivesWhatNumberedSamplesGive) {
  const auto noisy = [](at::Tensor x, Random& random) { return x * 1000 + random.below(1000); };
  for (const std::int64_t size : {1, 2, 3, 7, 12}) {
    for (const std::int64_t buffer : {0, 1, 3, 20}) {
      for (const std::int64_t count : {1, 2, 3, 5}) {
        for (const Remainder remainder : {Remainder::kWrap, Remainder::kDrop, Remainder::kUneven}) {
          for (const LastBatch last : {LastBatch::kKeep, LastBatch::kDrop, LastBatch::kPad}) {
            for (std::int64_t index = 0; index < count; ++index) {
              const auto finish = [&](DataLoader loader) {
                if (buffer > 0) loader.shuffle_buffer(buffer, 3);
                return loader.shard({index, count, remainder})
                    .map("x", noisy)
                    .batch(2, last)
                    .repeat(2);
              };
              const DataLoader read = finish(DataLoader(read_to(size)));
              const DataLoader numbered = finish(DataLoader(count_to(size)));
              std::vector<Batch> expected;
              try {
                expected = all_of(*numbered.open(1));
              } catch (const UsageError&) {
                expected.clear();  // not one batch, which is not known beforehand here
              }
              const auto found = all_of(*read.open(1));
              ASSERT_EQ(found.size(), expected.size())
                  << size << " samples, shard " << index << " of " << count;
              for (std::size_t i = 0; i < found.size(); ++i)
                EXPECT_TRUE(testing::is_same(found[i], expected[i]));
            }
          }
        }
      }
    }
  }
}

TEST(Iterable, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(DataLoader(read_to(17, true))
                                                   .shuffle_buffer(5, 3)
                                                   .shard({1, 2, Remainder::kUneven})
                                                   .batch(3, LastBatch::kPad)
                                                   .repeat(2),
                                               1);
}

TEST(Iterable, IsOpenedForEveryPassWithItsNumber) {
  const auto set = iterable({"x"}, [](std::int64_t pass) {
    return [pass, is_first = true]() mutable -> std::optional<std::vector<at::Tensor>> {
      if (!std::exchange(is_first, false)) return std::nullopt;
      return std::vector<at::Tensor>{at::scalar_tensor(pass)};
    };
  });
  EXPECT_EQ(testing::rows_of(DataLoader(set).repeat(3), 2), (Numbers{6, 7, 8}));
}

TEST(Iterable, HasNoBatchesWithoutSamples) {
  for (const int workers : {0, 2}) {
    DataLoader loader = DataLoader(read_to(0)).batch(2, LastBatch::kPad);
    if (workers > 0) loader.prefetch(2, workers);
    const auto stream = loader.open(0);
    EXPECT_FALSE(stream->next());
    EXPECT_FALSE(stream->next());
  }
}

TEST(Iterable, IsReadByOneThreadAtATimeAndMappedByAll) {
  std::latch both(2);  // passes only when two samples are mapped at once
  const auto loader = DataLoader(read_to(2)).prefetch(2, 2).map("x", [&](at::Tensor x) {
    both.arrive_and_wait();
    return x;
  });
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0}, Numbers{1}));
}

// All rows of a batch were those of its last sample.
TEST(Iterable, MayUseTheMemoryOfASampleAgain) {
  const auto with_memory = [](bool as_view) {
    return iterable({"x"}, [as_view](std::int64_t) {
      return [as_view, memory = at::zeros({1}, at::kLong),
              next = std::int64_t{0}]() mutable -> std::optional<std::vector<at::Tensor>> {
        if (next == 4) return std::nullopt;
        memory.fill_(next++);
        return std::vector<at::Tensor>{as_view ? memory[0] : memory};
      };
    });
  };
  for (const bool as_view : {false, true}) {
    const DataLoader loader(with_memory(as_view));
    EXPECT_THAT(batches_of(DataLoader(loader).batch(2)), ElementsAre(Numbers{0, 1}, Numbers{2, 3}));
    Numbers shuffled = testing::rows_of(DataLoader(loader).shuffle_buffer(4, 1));
    std::ranges::sort(shuffled);
    EXPECT_EQ(shuffled, (Numbers{0, 1, 2, 3}));
  }
}

TEST(Iterable, KnowsItsBatchesWhereItsSizeIsSaid) {
  const auto loader = DataLoader(read_to(5, true)).batch(2);
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(loader.samples(), 5);
  EXPECT_THAT(message_of<UsageError>([&] { loader.open(0, 4); }),
              HasSubstr("an epoch has 3 batches"));
  EXPECT_THAT(message_of<UsageError>([] { (void)DataLoader(read_to(5)).batches(); }),
              HasSubstr("the number of samples is not known"));
  EXPECT_FALSE(DataLoader(read_to(5)).open(0, 9)->next());
}

TEST(Iterable, SkipsWithinABatch) {
  const auto loader = DataLoader(read_to(5)).batch(2).skip_failed(3).map("x", [](at::Tensor x) {
    if (x.item<std::int64_t>() % 4 == 1) throw std::runtime_error("damaged");
    return x;
  });
  const auto stream = loader.open(0);
  EXPECT_THAT(batches_of(*stream), ElementsAre(Numbers{0, 0}, Numbers{2, 3}, Numbers{4}));
  ASSERT_EQ(stream->skipped().size(), 1U);
  EXPECT_EQ(stream->skipped()[0].sample, 1);
}

class IterableErrors : public testing::WithWorkers {
 protected:
  // What ends the stream.
  template <typename E>
  static std::string error_of(const DataLoader& loader) {
    const auto stream = over(loader).open(0);
    const std::string message = message_of<E>([&] {
      while (stream->next()) {
      }
    });
    EXPECT_FALSE(stream->next());
    return message;
  }
};

INSTANTIATE_TEST_SUITE_P(Workers, IterableErrors, testing::numbers_of_workers());

TEST_P(IterableErrors, NameTheSampleThatCannotBeRead) {
  const auto set = iterable({"x"}, [](std::int64_t) {
    return [reader = counting(9), left = 4]() mutable {
      if (left-- == 0) throw std::runtime_error("the connection broke");
      return reader();
    };
  });
  EXPECT_THAT(error_of<DataError>(DataLoader(set).batch(3).skip_failed(9)),
              HasSubstr("pass 0, sample 4: the connection broke"));
}

TEST_P(IterableErrors, NameThePassThatCannotBeOpened) {
  const auto fails = iterable(
      {"x"}, [](std::int64_t) -> SampleReader { throw std::runtime_error("no such host"); });
  EXPECT_THAT(error_of<DataError>(DataLoader(fails)), HasSubstr("pass 0: no such host"));
  const auto nothing = iterable({"x"}, [](std::int64_t) { return SampleReader(); });
  EXPECT_THAT(error_of<UsageError>(DataLoader(nothing)), HasSubstr("has opened no reader"));
}

TEST_P(IterableErrors, NameASizeThatIsNotTrue) {
  const auto of = [](std::int64_t size, std::int64_t said) {
    return DataLoader(iterable({"x"}, [size](std::int64_t) { return counting(size); }, said));
  };
  EXPECT_THAT(error_of<DataError>(of(3, 5)),
              HasSubstr("the data set has only 3 samples, but said 5"));
  EXPECT_THAT(error_of<DataError>(of(6, 5)),
              HasSubstr("the data set has more than 5 samples, but said 5"));
}

TEST_P(IterableErrors, NameTheColumnsThatAreMissing) {
  const auto set = iterable({"x", "y"}, [](std::int64_t) { return counting(3); });
  EXPECT_THAT(error_of<UsageError>(DataLoader(set)),
              HasSubstr("sample 0: the data set gave 1 tensors, expected 2: 'x', 'y'"));
}

TEST(Iterable, RefusesWhatNeedsNumberedSamples) {
  const DataLoader loader(read_to(3));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(loader).shuffle(); }),
              HasSubstr("shuffle of a data set that can only be read to its end"));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(loader).bucket({1}, {{}, {1}}); }),
              HasSubstr("bucket of a data set"));
  EXPECT_THAT(message_of<UsageError>([&] {
                DataLoader(loader).shard({0, 2, Remainder::kWrap, Partition::kContiguous});
              }),
              HasSubstr("contiguous shards of a data set"));
}

TEST(Iterable, RefusesNothing) {
  const auto open = [](std::int64_t) { return counting(1); };
  EXPECT_THAT(message_of<UsageError>([] { DataLoader{std::shared_ptr<const IterableDataset>()}; }),
              HasSubstr("without samples"));
  EXPECT_THAT(message_of<UsageError>([] { DataLoader{read_to(0, true)}; }),
              HasSubstr("without samples"));
  EXPECT_THAT(message_of<UsageError>([&] { iterable({}, open); }), HasSubstr("without columns"));
  EXPECT_THAT(message_of<UsageError>([&] { iterable({"x", "x"}, open); }),
              HasSubstr("the column 'x' is there twice"));
  EXPECT_THAT(message_of<UsageError>([&] { iterable({"x"}, open, -1); }),
              HasSubstr("a data set of -1 samples"));
  EXPECT_THAT(message_of<UsageError>([] { iterable({"x"}, nullptr); }),
              HasSubstr("an iterable data set without a function"));
}

TEST(Iterable, SaysInItsStateWhatIsKnown) {
  const auto state = [](const DataLoader& loader) { return loader.open(0)->state(); };
  const DataLoader unknown(read_to(5));
  EXPECT_NO_THROW(unknown.open(state(unknown)));
  EXPECT_THAT(message_of<UsageError>([&] { DataLoader(read_to(5, true)).open(state(unknown)); }),
              HasSubstr("data set: an unknown number of samples of 'x' in the state, 5 samples of "
                        "'x' here"));
}

}  // namespace
}  // namespace trireme::data

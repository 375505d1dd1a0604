// SPDX-License-Identifier: Apache-2.0
// Going on where a stream stood. That every operation does so is tested with each of them.
#include <trireme/data/stream_state.h>

#include "batches.h"
#include <trireme/base/error.h>
#include <trireme/data/dataset_views.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <stdexcept>
#include <string>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using testing::batches_of;
using testing::count_to;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Numbers;

DataLoader usual() {
  return DataLoader(count_to(20)).shuffle(3).map("x", type_cast(at::kLong)).batch(3).seed(5);
}

StreamState state_after(const DataLoader& loader, int batches, std::int64_t epoch = 2) {
  const auto stream = loader.open(epoch);
  for (int i = 0; i < batches; ++i) stream->next();
  return stream->state();
}

TEST(StreamState, HoldsWhatWasTakenAndNotWhatWasPrefetched) {
  const StreamState state = state_after(DataLoader(usual()).prefetch(6, 2), 2);
  EXPECT_EQ(state.epoch, 2);
  EXPECT_EQ(state.next_batch, 2);
  EXPECT_EQ(state, state_after(usual(), 2));
}

TEST(StreamState, GoesOnWithAnyNumberOfWorkers) {
  const auto all = batches_of(usual(), 2);
  const StreamState state = state_after(DataLoader(usual()).prefetch(6, 2), 4);
  for (const int workers : {1, 4}) {
    const auto rest = DataLoader(usual()).prefetch(2, workers).open(state);
    EXPECT_EQ(batches_of(*rest), std::vector<Numbers>(all.begin() + 4, all.end()));
  }
}

TEST(StreamState, IsAnEmptyRestAfterTheLastBatch) {
  const StreamState state = state_after(usual(), 100);
  EXPECT_EQ(state.next_batch, usual().batches());
  EXPECT_FALSE(usual().open(state)->next());
}

TEST(StreamState, OfOneRankServesAll) {
  const auto part = [](std::int64_t rank) {
    return DataLoader(usual()).shard({.index = rank, .count = 2});
  };
  const StreamState state = state_after(part(0), 1);
  const auto all = batches_of(part(1), 2);
  EXPECT_EQ(batches_of(*part(1).open(state)), std::vector<Numbers>(all.begin() + 1, all.end()));
}

TEST(StreamState, GoesOnWithAllOperationsTogether) {
  const auto images = generator(23, {"image"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::full({index % 3 + 1}, static_cast<double>(index))};
  });
  const auto fail = [](at::Tensor image, Random& random) {
    if (random.below(5) == 0) throw std::runtime_error("not this time");
    return image + random.uniform();
  };
  const auto labels = tensors({{"label", at::arange(23) % 4}});
  for (const Partition partition : {Partition::kStrided, Partition::kContiguous}) {
    testing::expect_same_for_workers_and_resumed(
        DataLoader(zip(images, labels))
            .shuffle_buffer(7, 3)
            .shard(
                {.index = 1, .count = 3, .remainder = Remainder::kUneven, .partition = partition})
            .map("image", fail)
            .pad("image", {.length = 4})
            .map_batch(mixup(4))
            .batch(3, LastBatch::kPad)
            .repeat(2)
            .skip_failed(100)
            .seed(9),
        2);
  }
}

TEST(StreamState, IsReadBackFromItsText) {
  const auto names = tensors({{"a = b\\n", at::zeros({4})}, {"two\nlines\\", at::zeros({4})}});
  for (const DataLoader& loader : {usual(), DataLoader(names).batch(2)}) {
    const StreamState state = state_after(loader, 1);
    EXPECT_EQ(StreamState::from_text(state.to_text()), state);
  }
}

TEST(StreamState, IsRefusedByAnotherPipeline) {
  const StreamState state = state_after(usual(), 1);
  const auto refusal = [&](const DataLoader& other) {
    return message_of<UsageError>([&] { other.open(state); });
  };
  EXPECT_THAT(
      refusal(DataLoader(count_to(21)).shuffle(3).map("x", type_cast(at::kLong)).batch(3).seed(5)),
      AllOf(HasSubstr("the state is of another data loader: data set: 20 samples of 'x' in "
                      "the state, 21 samples of 'x' here"),
            Not(HasSubstr("batch:"))));
  EXPECT_THAT(refusal(DataLoader(usual()).batch(4).seed(6)),
              AllOf(HasSubstr("batch: 3 rows, the last one kept in the state, 4 rows, the last one "
                              "kept here"),
                    HasSubstr("seed: 5 in the state, 6 here")));
  EXPECT_THAT(refusal(DataLoader(usual()).shuffle(4)),
              HasSubstr("shuffle: whole, seed 3 in the state, whole, seed 4 here"));
  EXPECT_THAT(refusal(DataLoader(usual()).shuffle_buffer(8, 3)),
              HasSubstr("buffer of 8, seed 3 here"));
  EXPECT_THAT(refusal(DataLoader(usual()).batch(3, LastBatch::kPad)),
              HasSubstr("the last one padded here"));
  EXPECT_THAT(
      refusal(DataLoader(usual()).shard({0, 2, Remainder::kUneven, Partition::kContiguous})),
      HasSubstr("shards: 1, strided, rest wrapped in the state, 2, contiguous, rest "
                "uneven here"));
  EXPECT_THAT(refusal(DataLoader(usual()).repeat(2)),
              HasSubstr("repetitions: 1 in the state, 2 here"));
  EXPECT_THAT(refusal(DataLoader(usual())
                          .map("x", rescale(2))
                          .map_columns({"x"}, {"y"}, [](std::vector<at::Tensor> x) { return x; })
                          .map_batch([](Batch batch) { return batch; })),
              HasSubstr("operations: 1 x: type_cast in the state, 1 x: type_cast; 2 x: rescale; 3 "
                        "'y': a function of the program; 4 batch: a function of the program here"));
  EXPECT_THAT(
      refusal(DataLoader(usual()).pad("x", {.value = 2, .multiple = 8})),
      HasSubstr("padding: none in the state, x: dimensions 0, value 2, multiple of 8 here"));
  EXPECT_THAT(refusal(DataLoader(usual()).pad("x", {.length = 8})), HasSubstr("length 8 here"));
}

TEST(StreamState, IsRefusedWhereTheLengthsOfBucketsDiffer) {
  const auto with_lengths = [](std::int64_t last) {
    return DataLoader(count_to(3)).bucket({1, 2, last}, {{5}, {2, 2}}, LastBatch::kDrop);
  };
  const StreamState state = state_after(with_lengths(3), 0);
  EXPECT_NO_THROW(with_lengths(3).open(state));
  EXPECT_THAT(message_of<UsageError>([&] { with_lengths(4).open(state); }),
              HasSubstr("batch: buckets at 5 with 2, 2 rows, the last ones dropped, lengths "));
}

TEST(StreamState, IsRefusedWhereASettingIsMissing) {
  StreamState state = state_after(usual(), 1);
  state.settings.pop_back();
  EXPECT_THAT(message_of<UsageError>([&] { usual().open(state); }),
              HasSubstr("padding: nothing in the state, none here"));
}

TEST(StreamState, IsRefusedBehindTheEndOfAnEpoch) {
  StreamState state = state_after(usual(), 1);
  state.next_batch = 100;
  EXPECT_THAT(message_of<UsageError>([&] { usual().open(state); }),
              HasSubstr("the first batch is 100, but an epoch has 7 batches"));
}

TEST(StreamState, RefusesTextThatIsNone) {
  const std::string text = state_after(usual(), 1).to_text();
  const auto refusal = [](const std::string& other) {
    return message_of<DataError>([&] { StreamState::from_text(other); });
  };
  EXPECT_THAT(refusal(""), HasSubstr("line 1: '', expected 'trireme stream state 1'"));
  EXPECT_THAT(refusal("another file\n"), HasSubstr("line 1: 'another file'"));
  EXPECT_THAT(refusal("trireme stream state 1\nend\n"),
              HasSubstr("line 2: 'end', expected 'epoch"));
  EXPECT_THAT(refusal("trireme stream state 1\nepoch = 1\nnext batch = -1\nend\n"),
              HasSubstr("line 3: 'next batch = -1', expected 'next batch = <number>'"));
  EXPECT_THAT(refusal("trireme stream state 1\nepoch = 1x\nnext batch = 1\nend\n"),
              HasSubstr("line 2: 'epoch = 1x'"));
  EXPECT_THAT(refusal("trireme stream state 1\nbatch\n"), HasSubstr("line 2: 'batch', expected"));
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW(StreamState::from_text(text.substr(0, size)), DataError) << size << " bytes";
}

}  // namespace
}  // namespace trireme::data

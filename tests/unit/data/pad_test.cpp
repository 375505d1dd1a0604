// SPDX-License-Identifier: Apache-2.0
// Samples of unequal length in one batch.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;

// Column `x` of sample i is 0, 1, ... of this length, `y` is i.
const std::vector<std::int64_t> kLengths{3, 1, 4, 2, 0};

std::shared_ptr<const Dataset> sequences() {
  return generator(std::ssize(kLengths), {"x", "y"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::arange(kLengths[static_cast<std::size_t>(index)]),
                                   at::full({}, index, at::kLong)};
  });
}

at::Tensor integers(const Numbers& numbers, at::IntArrayRef sizes) {
  return at::tensor(numbers, at::kLong).view(sizes);
}

TEST(Pad, BringsSamplesToTheLongestOfTheirBatch) {
  const auto loader = DataLoader(sequences()).pad("x", {.value = -1, .lengths = "length"}).batch(2);
  EXPECT_THAT(loader.columns(), ElementsAre("x", "y", "length"));
  const auto batches = testing::all_of(*loader.open(0));
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_TRUE(at::equal(batches[0]["x"], integers({0, 1, 2, 0, -1, -1}, {2, 3})));
  EXPECT_TRUE(at::equal(batches[1]["x"], integers({0, 1, 2, 3, 0, 1, -1, -1}, {2, 4})));
  EXPECT_EQ(batches[2]["x"].sizes(), (Numbers{1, 0}));
  EXPECT_TRUE(at::equal(batches[0]["length"], integers({3, 1}, {2})));
  EXPECT_TRUE(at::equal(batches[0]["y"], integers({0, 1}, {2})));
  EXPECT_THAT(batches[0].names, ElementsAre("x", "y", "length"));
}

TEST(Pad, RoundsTheLengthUpOrTakesAFixedOne) {
  const auto rounded = DataLoader(sequences()).pad("x", {.multiple = 4}).batch(5).open(0)->next();
  EXPECT_EQ((*rounded)["x"].sizes(), (Numbers{5, 4}));
  const auto more = DataLoader(sequences()).pad("x", {.multiple = 3}).batch(5).open(0)->next();
  EXPECT_EQ((*more)["x"].sizes(), (Numbers{5, 6}));
  const auto fixed = DataLoader(sequences()).pad("x", {.length = 7}).batch(2).open(0)->next();
  EXPECT_TRUE(
      at::equal((*fixed)["x"], integers({0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 7})));
}

TEST(Pad, PadsWhatOperationsMake) {
  const auto batch = DataLoader(sequences())
                         .map("x", rescale(0.5))
                         .map("x", type_cast(at::kDouble))
                         .pad("x", {.value = 0.25})
                         .batch(2)
                         .open(0)
                         ->next();
  EXPECT_TRUE(at::equal((*batch)["x"],
                        at::tensor({0.0, 0.5, 1.0, 0.0, 0.25, 0.25}, at::kDouble).view({2, 3})));
}

TEST(Pad, TakesTensorsWhoseMemoryIsUsedAgain) {
  const at::Tensor memory = at::zeros({4}, at::kLong);
  const auto batch = DataLoader(sequences())
                         .map("x",
                              [=](const at::Tensor& x) {
                                memory.narrow(0, 0, x.size(0)).copy_(x + x.size(0));
                                return memory.narrow(0, 0, x.size(0));
                              })
                         .pad("x")
                         .batch(2)
                         .open(0)
                         ->next();
  EXPECT_TRUE(at::equal((*batch)["x"], integers({3, 4, 5, 1, 0, 0}, {2, 3})));
}

// All rows were those of the last sample.
TEST(Pad, TakesATensorThatIsFilledAgain) {
  const auto set = generator(3, {"x"}, [memory = at::zeros({2}, at::kLong)](std::int64_t index) {
    memory.fill_(index);
    return std::vector<at::Tensor>{memory};
  });
  const auto batch = DataLoader(set).pad("x").batch(3).open(0)->next();
  EXPECT_TRUE(at::equal((*batch)["x"], integers({0, 0, 1, 1, 2, 2}, {3, 2})));
}

TEST(Pad, PadsOtherAndSeveralDimensions) {
  const auto images = generator(2, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::ones({2, index + 2, 3 - index})};
  });
  at::Tensor expected = at::zeros({2, 2, 3, 3});
  expected[0].narrow(1, 0, 2).narrow(2, 0, 3).fill_(1);
  expected[1].narrow(1, 0, 3).narrow(2, 0, 2).fill_(1);
  const auto batch = DataLoader(images)
                         .pad("x", {.dimensions = {-2, -1}, .lengths = "size"})
                         .batch(2)
                         .open(0)
                         ->next();
  EXPECT_TRUE(at::equal((*batch)["x"], expected));
  EXPECT_TRUE(at::equal((*batch)["size"], integers({2, 3, 3, 2}, {2, 2})));

  const auto spectra = generator(2, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::ones({2, index + 1})};
  });
  const auto last = DataLoader(spectra).pad("x", {.dimensions = {-1}}).batch(2).open(0)->next();
  EXPECT_TRUE(at::equal((*last)["x"],
                        at::tensor({1.F, 0.F, 1.F, 0.F, 1.F, 1.F, 1.F, 1.F}).view({2, 2, 2})));
}

TEST(Pad, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(DataLoader(sequences())
                                                   .shuffle(4)
                                                   .pad("x", {.value = 9, .lengths = "n"})
                                                   .batch(2, LastBatch::kPad)
                                                   .repeat(2),
                                               3);
}

std::string message_of_batch(const DataLoader& loader) {
  return message_of<UsageError>([&] { loader.open(0)->next(); });
}

TEST(Pad, NamesTheSampleThatIsTooLong) {
  EXPECT_THAT(message_of_batch(DataLoader(sequences()).pad("x", {.length = 3}).batch(5)),
              HasSubstr("column 'x': sample 2 is Long [4], longer than the 3"));
}

TEST(Pad, NamesTheSampleThatDiffersElsewhere) {
  const auto sizes = generator(3, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({2, index < 2 ? 5 : 6})};
  });
  EXPECT_THAT(message_of_batch(DataLoader(sizes).pad("x").batch(3)),
              HasSubstr("column 'x': sample 2 is Float [2, 6], but sample 0 of the same batch is "
                        "Float [2, 5]"));
  const auto dtypes = generator(2, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({2}, index == 0 ? at::kFloat : at::kLong)};
  });
  EXPECT_THAT(message_of_batch(DataLoader(dtypes).pad("x").batch(2)),
              HasSubstr("sample 1 is Long"));
  const auto ranks = generator(2, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{index == 0 ? at::zeros({2}) : at::zeros({2, 2})};
  });
  EXPECT_THAT(message_of_batch(DataLoader(ranks).pad("x").batch(2)),
              HasSubstr("sample 1 is Float [2, 2]"));
}

TEST(Pad, RefusesDimensionsThatSamplesHaveNot) {
  EXPECT_THAT(message_of_batch(DataLoader(sequences()).pad("x", {.dimensions = {1}})),
              HasSubstr("column 'x': dimension 1 is to be padded, but samples are Long [3]"));
  EXPECT_THAT(message_of_batch(DataLoader(sequences()).pad("x", {.dimensions = {0, -1}})),
              HasSubstr("dimension -1 of samples Long [3] is padded twice"));
}

TEST(Pad, RefusesAValueThatTheDtypeCannotHold) {
  EXPECT_THAT(message_of_batch(DataLoader(sequences()).pad("x", {.value = 0.5})),
              HasSubstr("column 'x': padding with the value 0.5 in Long"));
}

TEST(Pad, RefusesSettingsWithoutSense) {
  const auto refusal = [](const std::string& column, const Padding& padding) {
    return message_of<UsageError>([&] { DataLoader(sequences()).pad(column, padding); });
  };
  EXPECT_THAT(refusal("z", {}), HasSubstr("no column 'z'; the columns are 'x', 'y'"));
  EXPECT_THAT(refusal("x", {.multiple = 0}), HasSubstr("multiple of padding is 0"));
  EXPECT_THAT(refusal("x", {.length = 0}), HasSubstr("length of padding is 0"));
  EXPECT_THAT(refusal("x", {.multiple = 2, .length = 4}), HasSubstr("give one of the two"));
  EXPECT_THAT(refusal("x", {.dimensions = {}}), HasSubstr("padding of no dimension of column 'x'"));
  EXPECT_THAT(refusal("x", {.lengths = "y"}), HasSubstr("the column 'y' is there twice"));
  EXPECT_THAT(message_of<UsageError>([] { DataLoader(sequences()).pad("x").pad("x"); }),
              HasSubstr("column 'x' is padded twice"));
}

}  // namespace
}  // namespace trireme::data

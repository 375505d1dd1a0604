// SPDX-License-Identifier: Apache-2.0
// Operations on several columns of a sample at once.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>

#include <stdexcept>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::numbers_of;
using Sample = std::vector<at::Tensor>;

// Columns x = i, y = 10 i, z = 100 i.
std::shared_ptr<const Dataset> three_columns() {
  const at::Tensor x = at::arange(4);
  return tensors({{"x", x}, {"y", x * 10}, {"z", x * 100}});
}

Sample add_and_subtract(Sample sample) { return {sample[0] + sample[1], sample[0] - sample[1]}; }

Batch first_of(const DataLoader& loader) { return *loader.open(0)->next(); }

TEST(MapColumns, GivesTheFunctionTheNamedColumnsInTheirOrder) {
  const Batch batch =
      first_of(DataLoader(three_columns()).map_columns({"z", "x"}, add_and_subtract).batch(3));
  EXPECT_THAT(batch.names, ElementsAre("z", "x", "y"));
  EXPECT_EQ(numbers_of(batch["z"]), (Numbers{0, 101, 202}));
  EXPECT_EQ(numbers_of(batch["x"]), (Numbers{0, 99, 198}));
  EXPECT_EQ(numbers_of(batch["y"]), (Numbers{0, 10, 20}));
}

TEST(MapColumns, AddsDropsAndRenamesColumnsWhereTheFirstStood) {
  const auto keep = [](Sample sample) { return sample; };
  const auto twice = [](Sample sample) { return Sample{sample[0], sample[0]}; };
  const auto first = [](Sample sample) { return Sample{sample[0]}; };
  const auto none = [](const Sample&) { return Sample{}; };
  const auto names = [](const DataLoader& loader) {
    EXPECT_EQ(first_of(loader).names, loader.columns());
    return loader.columns();
  };
  const DataLoader plain(three_columns());
  EXPECT_THAT(names(DataLoader(plain).map_columns({"y"}, {"a"}, keep)), ElementsAre("x", "a", "z"));
  EXPECT_THAT(names(DataLoader(plain).map_columns({"y"}, {"a", "y"}, twice)),
              ElementsAre("x", "a", "y", "z"));
  EXPECT_THAT(names(DataLoader(plain).map_columns({"z", "y"}, {"a"}, first)),
              ElementsAre("x", "a"));
  EXPECT_THAT(names(DataLoader(plain).map_columns({"x"}, {}, none)), ElementsAre("y", "z"));
  EXPECT_THAT(names(DataLoader(plain).map_columns({"x", "y"}, {"y", "x"}, keep)),
              ElementsAre("y", "x", "z"));
}

TEST(MapColumns, ComesAfterAllEarlierOperationsAndBeforeAllLater) {
  const auto loader = DataLoader(three_columns())
                          .map("x", rescale(2))
                          .map("x", type_cast(at::kLong))
                          .map("y", [](at::Tensor y) { return y + 1; })
                          .map_columns({"x", "y"}, {"sum", "difference"}, add_and_subtract)
                          .map("sum", rescale(1, 1000))
                          .map_columns({"sum"}, {"s"}, [](Sample s) { return s; })
                          .map("s", type_cast(at::kInt))
                          .batch(4);
  const Batch batch = first_of(loader);
  EXPECT_THAT(batch.names, ElementsAre("s", "difference", "z"));
  EXPECT_EQ(numbers_of(batch["s"]), (Numbers{1001, 1013, 1025, 1037}));
  EXPECT_EQ(numbers_of(batch["difference"]), (Numbers{-1, -9, -17, -25}));
  EXPECT_EQ(numbers_of(batch["z"]), (Numbers{0, 100, 200, 300}));
}

TEST(MapColumns, KeepsTheResultsOfSeveralColumnsApartUntilThen) {
  // Built-in operations share memory for what lies between them.
  const auto loader = DataLoader(three_columns())
                          .map("x", rescale(1, 1))
                          .map("y", rescale(1, 2))
                          .map("z", rescale(1, 3))
                          .map_columns({"x", "y", "z"}, [](Sample sample) { return sample; })
                          .batch(2);
  const Batch batch = first_of(loader);
  EXPECT_EQ(numbers_of(batch["x"]), (Numbers{1, 2}));
  EXPECT_EQ(numbers_of(batch["y"]), (Numbers{2, 12}));
  EXPECT_EQ(numbers_of(batch["z"]), (Numbers{3, 103}));
}

TEST(MapColumns, GivesTheFunctionTensorsOfItsOwn) {
  const at::Tensor x = at::arange(3);
  const auto add = [](Sample sample) {
    sample[0].add_(5);
    return sample;
  };
  const Batch batch = first_of(DataLoader(tensors({{"x", x}})).map_columns({"x"}, add).batch(3));
  EXPECT_EQ(numbers_of(batch["x"]), (Numbers{5, 6, 7}));
  EXPECT_EQ(numbers_of(x), (Numbers{0, 1, 2}));
}

TEST(MapColumns, DrawsTheSameRandomNumbersWithAnyNumberOfWorkersAndResumed) {
  const auto noisy = [](Sample sample, Random& random) {
    return Sample{sample[0] * 1000 + random.below(1000), sample[1]};
  };
  testing::expect_same_for_workers_and_resumed(DataLoader(three_columns())
                                                   .shuffle(1)
                                                   .map_columns({"x", "y"}, noisy)
                                                   .map_columns({"x", "z"}, noisy)
                                                   .batch(3)
                                                   .repeat(2),
                                               2);
}

TEST(MapColumns, SaysWhereAFunctionFails) {
  const auto fail = [](const Sample&) -> Sample { throw std::runtime_error("no mask"); };
  const auto loader =
      DataLoader(three_columns())
          .map("x", rescale(1))
          .map_columns({"z", "y"}, SampleTransform("crop", [&](const Sample& sample, Random&) {
                         return fail(sample);
                       }));
  EXPECT_THAT(message_of<DataError>([&] { first_of(loader); }),
              HasSubstr("columns 'z', 'y', operation 2 (crop), sample 0: no mask"));
}

TEST(MapColumns, RefusesAnotherNumberOfResults) {
  const auto loader = DataLoader(three_columns()).map_columns({"x", "y"}, [](Sample sample) {
    return Sample{sample[0]};
  });
  EXPECT_THAT(
      message_of<UsageError>([&] { first_of(loader); }),
      AllOf(HasSubstr("columns 'x', 'y', operation 1 (a function of the program), sample 0"),
            HasSubstr("returned 1 tensors, expected 2: 'x', 'y'")));
  const auto undefined = DataLoader(three_columns()).map_columns({"x"}, [](const Sample&) {
    return Sample{at::Tensor()};
  });
  EXPECT_THAT(message_of<UsageError>([&] { first_of(undefined); }),
              HasSubstr("the result is not a dense CPU tensor"));
}

TEST(MapColumns, RefusesColumnsThatDoNotFit) {
  const auto keep = [](Sample sample) { return sample; };
  const auto refusal = [&](const std::vector<std::string>& from,
                           const std::vector<std::string>& to) {
    return message_of<UsageError>([&] { DataLoader(three_columns()).map_columns(from, to, keep); });
  };
  EXPECT_THAT(refusal({}, {"a"}), HasSubstr("map_columns of no column"));
  EXPECT_THAT(refusal({"a"}, {"a"}), HasSubstr("no column 'a'; the columns are 'x', 'y', 'z'"));
  EXPECT_THAT(refusal({"x", "x"}, {"a"}), HasSubstr("the column 'x' is there twice"));
  EXPECT_THAT(refusal({"x"}, {"y"}), HasSubstr("the column 'y' is there twice"));
  EXPECT_THAT(refusal({"x", "y", "z"}, {}), HasSubstr("leaves no column"));
  const auto padded = [&](const std::string& column) {
    return message_of<UsageError>([&] {
      DataLoader(three_columns())
          .pad("x", {.lengths = "length"})
          .map_columns({column}, {"length"}, keep);
    });
  };
  EXPECT_THAT(padded("x"), HasSubstr("the column 'length' is there twice"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { DataLoader(three_columns()).pad("x").map_columns({"x"}, {"a"}, keep); }),
              HasSubstr("takes away column 'x', which pad() was called for"));
  EXPECT_THAT(message_of<UsageError>([] {
                DataLoader(three_columns())
                    .map_columns({"x"}, SampleTransform("nothing", SampleTransform::Function()));
              }),
              HasSubstr("the transform 'nothing' has no function"));
}

TEST(MapColumns, ChangesTheColumnsThatLaterCallsKnow) {
  DataLoader loader(three_columns());
  loader.map_columns({"x"}, {"a"}, [](Sample sample) { return sample; });
  EXPECT_THAT(message_of<UsageError>([&] { loader.map("x", rescale(1)); }),
              HasSubstr("no column 'x'; the columns are 'a', 'y', 'z'"));
  EXPECT_NO_THROW(loader.map("a", rescale(1)));
}

}  // namespace
}  // namespace trireme::data

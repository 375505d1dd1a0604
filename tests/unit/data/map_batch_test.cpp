// SPDX-License-Identifier: Apache-2.0
// Operations on whole batches.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <set>
#include <stdexcept>

namespace trireme::data {
namespace {

using test::message_of;
using testing::count_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::numbers_of;

TEST(MapBatch, ComesAfterSamplesArePadded) {
  const auto set = generator(
      3, {"x"}, [](std::int64_t index) { return std::vector<at::Tensor>{at::arange(index + 1)}; });
  const auto loader = DataLoader(set)
                          .map_batch([](Batch batch) {
                            batch.names.emplace_back("sum");
                            batch.columns.push_back(batch["x"].sum(1) + batch["n"]);
                            return batch;
                          })
                          .pad("x", {.value = 100, .lengths = "n"})
                          .batch(2);
  const auto batch = loader.open(0)->next();
  EXPECT_THAT(batch->names, ElementsAre("x", "n", "sum"));
  EXPECT_EQ(numbers_of((*batch)["sum"]), (Numbers{101, 3}));
}

TEST(MapBatch, AppliesOperationsInTheOrderOfTheCallsWithoutAutograd) {
  const auto loader = DataLoader(count_to(3))
                          .batch(3)
                          .map_batch([](Batch batch) {
                            EXPECT_FALSE(c10::GradMode::is_enabled());
                            batch.columns[0] = batch.columns[0] * 10;
                            return batch;
                          })
                          .map_batch([](Batch batch) {
                            batch.columns[0].add_(1);
                            return batch;
                          });
  EXPECT_EQ(testing::rows_of(loader), (Numbers{1, 11, 21}));
}

Batch draw(const Batch& batch, Random& random) {
  return {{"x"}, {at::full({batch.rows()}, random.below(1LL << 40), at::kLong)}, 0};
}

TEST(MapBatch, DrawsOtherRandomNumbersForOtherSeedsEpochsBatchesShardsAndOperations) {
  const auto second = [](Batch batch, Random& random) {
    batch.names.emplace_back("y");
    batch.columns.push_back(at::full({batch.rows()}, random.below(1LL << 40), at::kLong));
    return batch;
  };
  std::set<std::int64_t> drawn;
  for (const std::uint64_t seed : {0U, 1U}) {
    for (const std::int64_t epoch : {0, 1}) {
      for (const std::int64_t rank : {0, 1}) {
        const auto loader = DataLoader(count_to(8))
                                .shard({.index = rank, .count = 2})
                                .batch(2)
                                .seed(seed)
                                .map_batch(draw)
                                .map_batch(second);
        const auto stream = loader.open(epoch);
        while (const auto batch = stream->next()) {
          drawn.insert((*batch)["x"][0].item<std::int64_t>());
          drawn.insert((*batch)["y"][0].item<std::int64_t>());
        }
      }
    }
  }
  EXPECT_EQ(drawn.size(), 2U * 2U * 2U * 2U * 2U);
}

TEST(MapBatch, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  testing::expect_same_for_workers_and_resumed(
      DataLoader(count_to(11)).shuffle(2).batch(3).map_batch(draw).repeat(2), 1);
}

template <typename Callable>
std::string refusal_of(const Callable& function) {
  const auto loader = DataLoader(count_to(4))
                          .batch(2)
                          .map_batch(BatchTransform("change", [=](const Batch& batch, Random&) {
                            return function(batch);
                          }));
  const auto stream = loader.open(0, 1);
  return message_of<UsageError>([&] { stream->next(); });
}

TEST(MapBatch, RefusesResultsThatAreNoBatchOfTheseRows) {
  EXPECT_THAT(refusal_of([](const Batch& batch) {
                return Batch{batch.names, {batch.columns[0].narrow(0, 0, 1)}};
              }),
              HasSubstr("batch 1 of pass 0, operation 1 (change): column 'x' of the result is "
                        "[1], expected a dense CPU tensor of 2 rows"));
  EXPECT_THAT(refusal_of([](const Batch& batch) { return Batch{batch.names, {at::Tensor()}}; }),
              HasSubstr("column 'x' of the result is undefined"));
  EXPECT_THAT(
      refusal_of([](const Batch& batch) { return Batch{batch.names, {at::scalar_tensor(1)}}; }),
      HasSubstr("column 'x' of the result is []"));
  EXPECT_THAT(refusal_of([](const Batch& batch) { return Batch{{"x", "y"}, batch.columns}; }),
              HasSubstr("the result has 1 columns and 2 names"));
  EXPECT_THAT(refusal_of([](const Batch&) { return Batch{}; }),
              HasSubstr("the result has 0 columns and 0 names"));
  EXPECT_THAT(refusal_of([](const Batch& batch) {
                return Batch{{"x", "x"}, {batch.columns[0], batch.columns[0]}};
              }),
              HasSubstr("the column 'x' is there twice"));
  EXPECT_THAT(refusal_of([](const Batch& batch) { return Batch{batch.names, batch.columns, 3}; }),
              HasSubstr("the result has 3 padded rows of 2"));
}

TEST(MapBatch, SaysWhereAFunctionFails) {
  const auto loader =
      DataLoader(count_to(4))
          .map("x", rescale(1))
          .batch(2)
          .repeat(2)
          .map_batch([](const Batch&) -> Batch { throw std::runtime_error("not this one"); });
  const auto stream = loader.open(2, 3);
  EXPECT_THAT(
      message_of<DataError>([&] { stream->next(); }),
      HasSubstr("batch 1 of pass 5, operation 2 (a function of the program): not this one"));
}

TEST(MapBatch, RefusesATransformWithoutAFunction) {
  EXPECT_THAT(message_of<UsageError>([] { BatchTransform("nothing", BatchTransform::Function()); }),
              HasSubstr("the transform 'nothing' has no function"));
}

}  // namespace
}  // namespace trireme::data

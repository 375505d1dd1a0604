// SPDX-License-Identifier: Apache-2.0
// Threads, errors and the end of a stream. Each case runs with and without workers.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/conj.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <atomic>
#include <exception>
#include <latch>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using testing::count_to;
using ::testing::HasSubstr;

class Stream : public testing::WithWorkers {};

INSTANTIATE_TEST_SUITE_P(Workers, Stream, testing::numbers_of_workers());

TEST_P(Stream, ThrowsAtTheBatchThatHasTheErrorAndIsOverThen) {
  const auto stream = over(count_to(10))
                          .map("x", type_cast(at::kFloat))
                          .map("x", Transform("check",
                                              [](at::Tensor x, Random&) {
                                                if (x.item<float>() == 5)
                                                  throw std::runtime_error("five is not wanted");
                                                return x;
                                              }))
                          .batch(2)
                          .open(0);
  EXPECT_TRUE(stream->next());
  EXPECT_TRUE(stream->next());
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              HasSubstr("column 'x', operation 2 (check), sample 5: five is not wanted"));
  EXPECT_FALSE(stream->next());
}

TEST_P(Stream, KeepsTheOriginalErrorNested) {
  const auto stream =
      over(count_to(1))
          .map("x", [](at::Tensor) -> at::Tensor { throw std::out_of_range("far"); })
          .open(0);
  try {
    stream->next();
    FAIL() << "threw nothing";
  } catch (const DataError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST_P(Stream, SaysWhichOperationCannotTakeTheSample) {
  const auto stream = over(count_to(4)).map("x", normalize({0}, {1})).open(0);
  EXPECT_THAT(message_of<UsageError>([&] { stream->next(); }),
              AllOf(HasSubstr("column 'x', operation 1 (normalize), sample 0: expected an image"),
                    HasSubstr("hint:")));
}

TEST_P(Stream, TakesErrorsOfLibTorchWithoutTheirBacktrace) {
  const auto stream =
      over(count_to(1)).map("x", [](at::Tensor x) { return x.view({2, 2}); }).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              AllOf(HasSubstr("shape '[2, 2]' is invalid"), ::testing::Not(HasSubstr("frame #"))));
}

TEST_P(Stream, SurvivesWhatIsNoException) {
  const auto stream = over(count_to(1))
                          // NOLINTNEXTLINE(bugprone-std-exception-baseclass)
                          .map("x", [](at::Tensor) -> at::Tensor { throw 7; })
                          .open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }), HasSubstr("not a std::exception"));
}

TEST_P(Stream, NamesTheSampleThatAGeneratorFailsAt) {
  const auto set = generator(9, {"x"}, [](std::int64_t index) -> std::vector<at::Tensor> {
    if (index == 4) throw std::runtime_error("no such file");
    return {at::scalar_tensor(index)};
  });
  const auto stream = over(set).batch(9).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }), HasSubstr("sample 4: no such file"));
}

TEST_P(Stream, NamesFileAndOffsetWhereTheDataSetDoes) {
  const auto set = generator(9, {"x"}, [](std::int64_t index) -> std::vector<at::Tensor> {
    if (index == 4) throw DataError("part-2.bin: offset 1024: cut short", "get it anew");
    return {at::scalar_tensor(index)};
  });
  const auto stream = over(set).batch(9).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              AllOf(HasSubstr("sample 4: part-2.bin: offset 1024: cut short"),
                    HasSubstr("hint: get it anew")));
}

TEST_P(Stream, RefusesSamplesThatLackAColumn) {
  class OneOfTwo final : public Dataset {
   public:
    std::int64_t size() const override { return 1; }
    const std::vector<std::string>& columns() const override { return names_; }
    std::vector<at::Tensor> get(std::int64_t /*index*/) const override { return {at::zeros({1})}; }

   private:
    std::vector<std::string> names_{"x", "y"};
  };
  EXPECT_THAT(message_of<UsageError>([&] { over(std::make_shared<OneOfTwo>()).open(0)->next(); }),
              HasSubstr("sample 0: the data set gave 1 tensors, expected 2: 'x', 'y'"));
}

TEST_P(Stream, NamesTheSamplesWhoseShapesOrDtypesDiffer) {
  const auto shapes = generator(4, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({2, index < 3 ? 5 : 6})};
  });
  const std::string expected =
      "sample 3 is Float [2, 6], but sample 0 of the same batch is Float [2, 5]";
  EXPECT_THAT(message_of<UsageError>([&] { over(shapes).batch(4).open(0)->next(); }),
              HasSubstr("column 'x': " + expected));
  EXPECT_THAT(
      message_of<UsageError>([&] { over(shapes).map("x", rescale(2)).batch(4).open(0)->next(); }),
      HasSubstr(expected));
  const auto dtypes = generator(2, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::zeros({2}, index == 0 ? at::kFloat : at::kLong)};
  });
  EXPECT_THAT(message_of<UsageError>([&] { over(dtypes).batch(2).open(0)->next(); }),
              HasSubstr("sample 1 is Long [2], but sample 0 of the same batch is Float [2]"));
}

TEST_P(Stream, BringsSamplesOfSeveralShapesToOne) {
  const auto set = generator(3, {"x"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::ones({1, index + 2, 2 * index + 1})};
  });
  const auto batch = over(set).map("x", resize(4, 4)).batch(3).open(0)->next();
  EXPECT_TRUE(at::equal((*batch)["x"], at::ones({3, 1, 4, 4})));
}

TEST_P(Stream, RefusesAFunctionWithoutAResult) {
  const auto stream = over(count_to(2)).map("x", [](at::Tensor) { return at::Tensor(); }).open(0);
  EXPECT_THAT(message_of<UsageError>([&] { stream->next(); }),
              HasSubstr("the result is not a dense CPU tensor"));
}

// LibTorch only notes that elements are to be conjugated or negated.
TEST_P(Stream, TakesElementsThatAreConjugatedLater) {
  const at::Tensor x = at::complex(at::ones({2}), at::ones({2}));
  const auto of = [](const DataLoader& loader) { return (*over(loader).open(0)->next())["x"]; };
  const at::Tensor expected = at::conj(x).resolve_conj().narrow(0, 0, 1);
  EXPECT_TRUE(at::equal(of(DataLoader(tensors({{"x", at::conj(x)}}))), expected));
  const DataLoader mapped = DataLoader(tensors({{"x", x}})).map("x", [](const at::Tensor& sample) {
    return sample.conj();
  });
  EXPECT_TRUE(at::equal(of(mapped), expected));
  const DataLoader negated = DataLoader(tensors({{"x", x}})).map("x", [](const at::Tensor& sample) {
    return at::imag(sample.conj());
  });
  EXPECT_TRUE(at::equal(of(negated), at::full({1}, -1.F)));
}

// It ended the program.
TEST_P(Stream, ThrowsWhatTheDataSetSaysOfItselfWhereItIsOpened) {
  class Fails final : public Dataset {
   public:
    std::int64_t size() const override { return 4; }
    const std::vector<std::string>& columns() const override { return names_; }
    std::vector<at::Tensor> get(std::int64_t /*index*/) const override { return {at::zeros({1})}; }
    const std::vector<at::Tensor>& stored() const override {
      if (++calls_ > 1) throw std::runtime_error("the disk is gone");
      return none_;
    }

   private:
    std::vector<std::string> names_{"x"};
    std::vector<at::Tensor> none_;
    mutable std::atomic<int> calls_{0};
  };
  const DataLoader loader = over(std::make_shared<Fails>());
  EXPECT_EQ(message_of<std::runtime_error>([&] { loader.open(0); }), "the disk is gone");
}

TEST_P(Stream, NamesTheBatchThatCannotBeMade) {
  const auto loader = over(tensors({{"x", at::zeros({1, 1, 1})}}))
                          .pad("x", {.length = std::int64_t{1} << 40, .dimensions = {0, 1}});
  EXPECT_THAT(message_of<DataError>([&] { loader.open(0)->next(); }),
              ::testing::StartsWith("batch 0 of pass 0: "));
}

TEST_P(Stream, HandlesSamplesWithoutElements) {
  const auto batch =
      over(tensors({{"x", at::zeros({2, 0})}})).map("x", rescale(2)).batch(2).open(0)->next();
  EXPECT_EQ((*batch)["x"].sizes(), (std::vector<std::int64_t>{2, 0}));
}

TEST_P(Stream, RunsFunctionsWithoutAutograd) {
  std::atomic<bool> enabled{false};
  const auto stream = over(count_to(1))
                          .map("x",
                               [&](at::Tensor x) {
                                 enabled = c10::GradMode::is_enabled();
                                 return x;
                               })
                          .open(0);
  const auto batch = stream->next();
  EXPECT_FALSE(enabled);
  EXPECT_TRUE(c10::GradMode::is_enabled());
}

TEST_P(Stream, OutlivesItsPipeline) {
  std::unique_ptr<BatchStream> stream;
  {
    DataLoader loader = over(count_to(4)).batch(2);
    stream = loader.open(0);
    loader.map("x", rescale(100));
  }
  EXPECT_EQ((*stream->next())["x"][1].item<std::int64_t>(), 1);
  EXPECT_EQ((*stream->next())["x"][1].item<std::int64_t>(), 3);
  EXPECT_FALSE(stream->next());
  EXPECT_FALSE(stream->next());
}

TEST_P(Stream, GivesBatchesThatItDoesNotTouchAgain) {
  const auto stream = over(count_to(6)).batch(2).open(0);
  const auto first = stream->next();
  while (stream->next()) {
  }
  EXPECT_TRUE(at::equal((*first)["x"], at::arange(2)));
}

TEST(PrefetchStream, UsesItsWorkersAtTheSameTime) {
  std::latch both(2);  // passes only when two samples are loaded at once
  const auto set = generator(2, {"x"}, [&](std::int64_t index) {
    both.arrive_and_wait();
    return std::vector<at::Tensor>{at::scalar_tensor(index)};
  });
  const auto stream = DataLoader(set).prefetch(2, 2).open(0);
  EXPECT_EQ((*stream->next())["x"].item<int>(), 0);
  EXPECT_EQ((*stream->next())["x"].item<int>(), 1);
}

TEST(PrefetchStream, GoesNoFurtherAheadThanAsked) {
  std::mutex mutex;
  std::set<std::int64_t> loaded;
  std::latch three(3);
  const auto set = generator(100, {"x"}, [&](std::int64_t index) {
    {
      const std::lock_guard lock(mutex);
      loaded.insert(index);
    }
    if (index < 3) three.count_down();
    return std::vector<at::Tensor>{at::scalar_tensor(index)};
  });
  {
    const auto stream = DataLoader(set).prefetch(3, 2).open(0);
    three.wait();
  }
  EXPECT_THAT(loaded, ::testing::ElementsAre(0, 1, 2));
}

TEST(PrefetchStream, StopsItsThreadsInTheMiddleOfABatchWhenAbandoned) {
  constexpr int kRows = 1'000'000;
  std::atomic<int> loaded{0};
  std::atomic<bool> is_abandoned{false};
  std::latch started(1);
  const auto set = generator(kRows, {"x"}, [&](std::int64_t index) {
    if (loaded++ == 0) started.count_down();
    while (!is_abandoned) std::this_thread::yield();
    return std::vector<at::Tensor>{at::scalar_tensor(index)};
  });
  auto stream = DataLoader(set).batch(kRows).prefetch(1).open(0);
  started.wait();
  is_abandoned = true;
  stream.reset();
  EXPECT_LT(loaded, kRows);
}

}  // namespace
}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/dataset_views.h>

#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <array>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <thread>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using DatasetPtr = std::shared_ptr<const Dataset>;
using Numbers = std::vector<std::int64_t>;
using Sample = std::vector<at::Tensor>;

// In memory: row i is i.
DatasetPtr count_to(std::int64_t size, const std::string& column = "x") {
  return tensors({{column, at::arange(size)}});
}

// Computed: "x" of sample i is i, "y" is 10 i.
DatasetPtr computed(std::int64_t size) {
  return generator(size, {"x", "y"}, [](std::int64_t index) {
    return Sample{at::scalar_tensor(index, at::kLong), at::scalar_tensor(10 * index, at::kLong)};
  });
}

Numbers numbers_of(const Dataset& dataset, std::size_t column = 0) {
  Numbers numbers;
  for (std::int64_t i = 0; i < dataset.size(); ++i)
    numbers.push_back(dataset.get(i).at(column).item<std::int64_t>());
  return numbers;
}

Numbers rows_of(const DatasetPtr& dataset, const std::string& column = "x") {
  const auto batch = DataLoader(dataset).batch(dataset->size()).open(0)->next();
  const at::Tensor rows = (*batch)[column];
  return {rows.const_data_ptr<std::int64_t>(), rows.const_data_ptr<std::int64_t>() + rows.numel()};
}

TEST(Take, GivesTheFirstSamples) {
  EXPECT_EQ(numbers_of(*take(count_to(5), 3)), (Numbers{0, 1, 2}));
  EXPECT_EQ(numbers_of(*take(computed(5), 3), 1), (Numbers{0, 10, 20}));
  EXPECT_EQ(take(count_to(5), 9)->size(), 5);
  EXPECT_EQ(take(count_to(5), 0)->size(), 0);
}

TEST(Skip, GivesTheSamplesAfterThose) {
  EXPECT_EQ(numbers_of(*skip(count_to(5), 3)), (Numbers{3, 4}));
  EXPECT_EQ(numbers_of(*skip(computed(5), 3), 1), (Numbers{30, 40}));
  EXPECT_EQ(skip(count_to(5), 9)->size(), 0);
  EXPECT_EQ(rows_of(take(skip(count_to(9), 2), 3)), (Numbers{2, 3, 4}));
}

TEST(TakeAndSkip, LeaveTheRowsWhereTheyAre) {
  const at::Tensor x = at::arange(12).view({6, 2});
  const DatasetPtr view = take(skip(tensors({{"x", x}}), 2), 3);
  ASSERT_EQ(view->stored().size(), 1);
  EXPECT_EQ(view->stored()[0].const_data_ptr(), x[2].const_data_ptr());
  EXPECT_EQ(view->stored()[0].sizes(), (Numbers{3, 2}));
  EXPECT_TRUE(view->stored()[0].is_contiguous());
  EXPECT_TRUE(take(computed(3), 2)->stored().empty());
}

TEST(TakeAndSkip, RefuseNegativeCountsAndSamplesThatAreNotTheirs) {
  EXPECT_THAT(message_of<UsageError>([] { take(count_to(5), -1); }),
              HasSubstr("take of -1 samples"));
  EXPECT_THAT(message_of<UsageError>([] { skip(count_to(5), -2); }),
              HasSubstr("skip of -2 samples"));
  for (const std::int64_t index : {-1, 2}) {
    EXPECT_THAT(message_of<UsageError>([&] { take(count_to(5), 2)->get(index); }),
                HasSubstr(join_message("sample ", index, " of a data set of 2 samples")));
  }
}

TEST(Subset, GivesTheSamplesOfItsIndices) {
  const DatasetPtr view = subset(count_to(5), {4, 0, 4});
  EXPECT_EQ(numbers_of(*view), (Numbers{4, 0, 4}));
  EXPECT_EQ(rows_of(view), (Numbers{4, 0, 4}));
  EXPECT_TRUE(view->stored().empty());
  EXPECT_EQ(subset(count_to(5), {})->size(), 0);
}

TEST(Subset, NamesTheIndexThatIsNotInTheDataSet) {
  EXPECT_THAT(message_of<UsageError>([] { subset(count_to(5), {0, 5, -1}); }),
              HasSubstr("index 1 is 5, but the data set has 5 samples"));
  EXPECT_THAT(message_of<UsageError>([] { subset(count_to(5), {-1}); }),
              HasSubstr("index 0 is -1"));
  EXPECT_THAT(message_of<UsageError>([] { subset(count_to(5), {1})->get(1); }),
              HasSubstr("sample 1 of a data set of 1 samples"));
}

TEST(Concatenate, GivesOneAfterTheOther) {
  const DatasetPtr view =
      concatenate({count_to(2), count_to(0), skip(count_to(9), 6), count_to(0)});
  EXPECT_EQ(view->size(), 5);
  EXPECT_EQ(numbers_of(*view), (Numbers{0, 1, 6, 7, 8}));
  EXPECT_EQ(rows_of(view), (Numbers{0, 1, 6, 7, 8}));
  EXPECT_TRUE(view->stored().empty());
}

TEST(Concatenate, NamesTheFirstColumnThatDiffers) {
  EXPECT_THAT(message_of<UsageError>([] { concatenate({}); }), HasSubstr("no data sets"));
  EXPECT_THAT(
      message_of<UsageError>([] {
        concatenate({computed(1), computed(1), rename_columns(computed(1), {{"y", "z"}})});
      }),
      HasSubstr("data set 2 has other columns than data set 0: column 1 is 'z', expected 'y'"));
  EXPECT_THAT(message_of<UsageError>([] { concatenate({computed(1), count_to(1)}); }),
              HasSubstr("column 1 is nothing, expected 'y'"));
  EXPECT_THAT(message_of<UsageError>([] { concatenate({count_to(1), computed(1)}); }),
              HasSubstr("column 1 is 'y', expected nothing"));
}

TEST(Concatenate, RefusesSamplesThatAreNotThere) {
  const DatasetPtr view = concatenate({count_to(2), count_to(3)});
  for (const std::int64_t index : {-1, 5}) {
    EXPECT_THAT(message_of<UsageError>([&] { view->get(index); }),
                HasSubstr(join_message("sample ", index, " of a data set of 5 samples")));
  }
}

TEST(Zip, PutsColumnsSideBySide) {
  const DatasetPtr view = zip(count_to(3, "a"), computed(3));
  EXPECT_THAT(view->columns(), ElementsAre("a", "x", "y"));
  EXPECT_EQ(numbers_of(*view, 2), (Numbers{0, 10, 20}));
  EXPECT_TRUE(view->stored().empty());
  EXPECT_TRUE(zip(computed(3), count_to(3, "a"))->stored().empty());
}

TEST(Zip, LeavesTheRowsWhereTheyAre) {
  const DatasetPtr a = count_to(3, "a");
  const DatasetPtr b = skip(count_to(5, "b"), 2);
  const DatasetPtr view = zip(a, b);
  ASSERT_EQ(view->stored().size(), 2);
  EXPECT_EQ(view->stored()[0].const_data_ptr(), a->stored()[0].const_data_ptr());
  EXPECT_EQ(view->stored()[1].const_data_ptr(), b->stored()[0].const_data_ptr());
  EXPECT_EQ(rows_of(view, "b"), (Numbers{2, 3, 4}));
}

TEST(Zip, RefusesUnequalSizesAndNamesInBoth) {
  EXPECT_THAT(message_of<UsageError>([] { zip(count_to(3, "a"), count_to(4, "b")); }),
              HasSubstr("the first has 3 samples, the second 4"));
  EXPECT_THAT(message_of<UsageError>([] { zip(count_to(3), computed(3)); }),
              HasSubstr("'x' is there twice among 'x', 'x', 'y'"));
  EXPECT_THAT(message_of<UsageError>([] { zip(count_to(2, "a"), count_to(2, "b"))->get(2); }),
              HasSubstr("sample 2 of a data set of 2 samples"));
}

TEST(Filter, KeepsWhatThePredicateSays) {
  Numbers seen;
  const DatasetPtr view = filter(computed(5), [&](const Sample& sample) {
    seen.push_back(sample.at(1).item<std::int64_t>());
    return sample[0].item<std::int64_t>() % 2 == 1;
  });
  EXPECT_EQ(numbers_of(*view, 1), (Numbers{10, 30}));
  EXPECT_EQ(seen, (Numbers{0, 10, 20, 30, 40}));  // once each, and not again by get()
  EXPECT_TRUE(filter(count_to(4), [](const Sample&) { return true; })->stored().empty());
}

TEST(Filter, NamesTheSampleWhereThePredicateThrew) {
  const auto throw_at_two = [](const Sample& sample) -> bool {
    if (sample[0].item<std::int64_t>() == 2) throw std::runtime_error("too bad");
    return false;
  };
  try {
    filter(count_to(5), throw_at_two);
    FAIL() << "threw nothing";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("filter: the predicate threw at sample 2: too bad"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
  EXPECT_THAT(message_of<UsageError>([] {
                filter(count_to(5),
                       [](const Sample& sample) { return sample[0].view({2, 2}).defined(); });
              }),
              AllOf(HasSubstr("threw at sample 0: "), HasSubstr("invalid for input of size 1")));
  EXPECT_THAT(message_of<UsageError>([] { filter(count_to(5), nullptr); }),
              HasSubstr("without a predicate"));
}

TEST(SelectColumns, GivesThemInTheOrderOfTheNames) {
  const DatasetPtr view = select_columns(computed(3), {"y", "x"});
  EXPECT_THAT(view->columns(), ElementsAre("y", "x"));
  EXPECT_EQ(numbers_of(*view, 0), (Numbers{0, 10, 20}));
  EXPECT_EQ(numbers_of(*view, 1), (Numbers{0, 1, 2}));
  EXPECT_EQ(select_columns(computed(3), {"y"})->get(2).size(), 1);
}

TEST(SelectColumns, LeavesTheRowsWhereTheyAre) {
  const DatasetPtr both = tensors({{"a", at::zeros({3})}, {"b", at::arange(3)}});
  const DatasetPtr view = select_columns(both, {"b"});
  ASSERT_EQ(view->stored().size(), 1);
  EXPECT_EQ(view->stored()[0].const_data_ptr(), both->stored()[1].const_data_ptr());
  EXPECT_TRUE(select_columns(computed(3), {"y"})->stored().empty());
}

TEST(SelectColumns, RefusesNamesThatAreNotThereOrTwice) {
  EXPECT_THAT(message_of<UsageError>([] { select_columns(computed(3), {"z"}); }),
              HasSubstr("no column 'z'; the columns are 'x', 'y'"));
  EXPECT_THAT(message_of<UsageError>([] { select_columns(computed(3), {"x", "x"}); }),
              HasSubstr("'x' is there twice"));
  EXPECT_THAT(message_of<UsageError>([] { select_columns(computed(3), {}); }),
              HasSubstr("without columns"));
}

TEST(RenameColumns, GivesTheSameColumnsOtherNames) {
  EXPECT_THAT(rename_columns(computed(3), {{"y", "label"}})->columns(), ElementsAre("x", "label"));
  const DatasetPtr exchanged = rename_columns(computed(3), {{"x", "y"}, {"y", "x"}});
  EXPECT_THAT(exchanged->columns(), ElementsAre("y", "x"));
  EXPECT_EQ(numbers_of(*exchanged, 0), (Numbers{0, 1, 2}));
  const DatasetPtr inner = count_to(3);
  EXPECT_EQ(rename_columns(inner, {{"x", "y"}})->stored().at(0).const_data_ptr(),
            inner->stored()[0].const_data_ptr());
}

TEST(RenameColumns, RefusesNamesThatAreNotThereOrTwice) {
  EXPECT_THAT(message_of<UsageError>([] { rename_columns(computed(3), {{"z", "a"}}); }),
              HasSubstr("no column 'z'"));
  EXPECT_THAT(message_of<UsageError>([] { rename_columns(computed(3), {{"x", "y"}}); }),
              HasSubstr("'y' is there twice"));
  EXPECT_THAT(message_of<UsageError>([] { rename_columns(computed(3), {{"x", "a"}, {"x", "b"}}); }),
              HasSubstr("'x' is renamed twice"));
}

TEST(Cache, LoadsEachSampleOnceWhateverTheThreads) {
  constexpr std::int64_t kSamples = 50;
  std::array<std::atomic<int>, kSamples> loads{};
  const DatasetPtr cached = cache(generator(kSamples, {"x"}, [&](std::int64_t index) {
    ++loads.at(static_cast<std::size_t>(index));
    std::this_thread::yield();
    return Sample{at::scalar_tensor(index, at::kLong)};
  }));
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (std::int64_t i = 0; i < kSamples; ++i)
          EXPECT_EQ(cached->get(i)[0].item<std::int64_t>(), i);
      });
    }
  }
  for (const std::atomic<int>& count : loads) EXPECT_EQ(count.load(), 1);
  EXPECT_EQ(cached->get(3)[0].const_data_ptr(), cached->get(3)[0].const_data_ptr());
}

TEST(Cache, TriesASampleAgainThatFailed) {
  int calls = 0;
  const DatasetPtr cached = cache(generator(1, {"x"}, [&](std::int64_t) {
    if (++calls == 1) throw std::runtime_error("disk");
    return Sample{at::arange(2)};
  }));
  EXPECT_THROW(cached->get(0), std::runtime_error);
  EXPECT_TRUE(at::equal(cached->get(0)[0], at::arange(2)));
  EXPECT_TRUE(at::equal(cached->get(0)[0], at::arange(2)));
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(message_of<UsageError>([&] { cached->get(1); }),
              HasSubstr("sample 1 of a data set of 1 samples"));
}

TEST(Cache, LeavesADataSetInMemoryAsItIs) {
  const DatasetPtr inner = count_to(3);
  EXPECT_EQ(cache(inner), inner);
}

TEST(Views, KeepTheSampleNumberOfWhatTheyView) {
  const DatasetPtr broken = generator(9, {"x"}, [](std::int64_t index) -> Sample {
    throw DataError(join_message("sample ", index, " is damaged"), "");
  });
  for (const DatasetPtr& view :
       {skip(broken, 6), subset(broken, {6}), concatenate({skip(broken, 6)}),
        rename_columns(skip(broken, 6), {{"x", "y"}}), cache(skip(broken, 6)),
        zip(skip(broken, 6), count_to(3, "y"))}) {
    EXPECT_THAT(message_of<DataError>([&] { view->get(0); }), HasSubstr("sample 6 is damaged"));
  }
  EXPECT_THAT(
      message_of<DataError>([&] { filter(skip(broken, 6), [](const Sample&) { return true; }); }),
      HasSubstr("sample 6 is damaged"));
  // The data loader puts its own place before it.
  const auto stream = DataLoader(skip(broken, 6)).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              HasSubstr("sample 0: sample 6 is damaged"));
}

TEST(Views, RefuseNull) {
  const DatasetPtr null;
  const std::vector<std::pair<std::string, std::function<void()>>> makers = {
      {"take", [&] { take(null, 1); }},
      {"skip", [&] { skip(null, 1); }},
      {"subset", [&] { subset(null, {0}); }},
      {"concatenate", [&] { concatenate({count_to(1), null}); }},
      {"zip", [&] { zip(count_to(1), null); }},
      {"zip", [&] { zip(null, count_to(1)); }},
      {"filter", [&] { filter(null, [](const Sample&) { return true; }); }},
      {"select_columns", [&] { select_columns(null, {"x"}); }},
      {"rename_columns", [&] { rename_columns(null, {}); }},
      {"cache", [&] { cache(null); }},
  };
  for (const auto& [name, make] : makers)
    EXPECT_THAT(message_of<UsageError>(make), HasSubstr(name + " of a null data set"));
}

}  // namespace
}  // namespace trireme::data

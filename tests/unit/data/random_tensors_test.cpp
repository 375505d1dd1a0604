// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/random_tensors.h>

#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>
#include <trireme/data/philox.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <array>
#include <limits>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

std::shared_ptr<const Dataset> numbers(std::int64_t size, std::uint64_t seed) {
  return random_tensors(size, {{.name = "x", .sizes = {2, 3}}, {.name = "y", .dtype = at::kLong}},
                        seed);
}

TEST(RandomTensors, DependOnSeedAndIndexAlone) {
  const auto set = numbers(100, 1);
  const at::Tensor last = set->get(99)[0];
  EXPECT_TRUE(at::equal(set->get(99)[0], last));
  EXPECT_TRUE(at::equal(numbers(1000, 1)->get(99)[0], last));  // asked for first
  EXPECT_FALSE(at::equal(set->get(98)[0], last));
  EXPECT_FALSE(at::equal(numbers(100, 2)->get(99)[0], last));
  EXPECT_TRUE(set->stored().empty());
}

TEST(RandomTensors, AreTheSameWithAnyNumberOfWorkers) {
  const auto batch_of = [](DataLoader loader) { return (*loader.batch(64).open(0)->next())["x"]; };
  EXPECT_TRUE(at::equal(batch_of(DataLoader(numbers(64, 1))),
                        batch_of(DataLoader(numbers(64, 1)).prefetch(2, 3))));
}

// They must not change from release to release, for measurements are compared.
TEST(RandomTensors, KeepTheirNumbersForEver) {
  const auto set = random_tensors(9,
                                  {{.name = "a", .sizes = {3}, .dtype = at::kByte},
                                   {.name = "b", .dtype = at::kLong, .bound = 1000}},
                                  7);
  const std::vector<at::Tensor> sample = set->get(5);
  Random first(7, 0, 5, std::numeric_limits<std::uint64_t>::max());
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(sample[0][i].item<std::int64_t>(), first.below(256));
  Random second(7, 0, 5, std::numeric_limits<std::uint64_t>::max() - 1);
  EXPECT_EQ(sample[1].item<std::int64_t>(), second.below(1000));
}

TEST(RandomTensors, HaveTheirSizesAndDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kByte, at::kInt, at::kLong}) {
    const at::Tensor sample =
        random_tensors(1, {{.name = "x", .sizes = {4, 0, 2}, .dtype = dtype}})->get(0)[0];
    EXPECT_EQ(sample.scalar_type(), dtype);
    EXPECT_EQ(sample.sizes(), (Sizes{4, 0, 2}));
  }
  EXPECT_EQ(random_tensors(1, {{"x"}})->get(0)[0].dim(), 0);
}

TEST(RandomTensors, AreNormalOrUniform) {
  const auto sample =
      random_tensors(1, {{.name = "normal", .sizes = {10000}},
                         {.name = "dice", .sizes = {60000}, .dtype = at::kInt, .bound = 6}})
          ->get(0);
  double sum = 0;
  double squares = 0;
  for (std::int64_t i = 0; i < 10000; ++i) {
    const double drawn = sample[0].const_data_ptr<float>()[i];
    sum += drawn;
    squares += drawn * drawn;
  }
  EXPECT_NEAR(sum / 10000, 0, 0.04);
  EXPECT_NEAR(squares / 10000, 1, 0.06);
  std::array<int, 6> counts{};
  for (std::int64_t i = 0; i < 60000; ++i)
    ++counts.at(static_cast<std::size_t>(sample[1].const_data_ptr<std::int32_t>()[i]));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);  // four standard deviations
}

TEST(RandomTensors, RefuseWhatTheyCannotMake) {
  EXPECT_THAT(message_of<UsageError>([] { random_tensors(-1, {{"x"}}); }), HasSubstr("-1 samples"));
  EXPECT_THAT(message_of<UsageError>([] { random_tensors(1, {}); }), HasSubstr("without columns"));
  EXPECT_THAT(message_of<UsageError>([] { random_tensors(1, {{"x"}, {"x"}}); }),
              HasSubstr("'x' is there twice"));
  EXPECT_THAT(
      message_of<UsageError>([] { random_tensors(1, {{.name = "x", .dtype = at::kHalf}}); }),
      HasSubstr("dtype Half in column 'x'"));
  EXPECT_THAT(message_of<UsageError>([] { random_tensors(1, {{.name = "x", .sizes = {3, -1}}}); }),
              HasSubstr("sizes [3, -1] in column 'x'"));
  EXPECT_THAT(message_of<UsageError>([] { numbers(3, 1)->get(3); }),
              HasSubstr("sample 3 of a data set of 3 samples"));
}

TEST(RandomTensors, RefuseBoundsThatTheDtypeCannotHold) {
  const auto make = [](at::ScalarType dtype, std::int64_t bound) {
    return random_tensors(1, {{.name = "x", .dtype = dtype, .bound = bound}});
  };
  EXPECT_THAT(message_of<UsageError>([&] { make(at::kByte, 257); }),
              HasSubstr("the bound of column 'x' is 257, expected 1 to the largest Byte and one"));
  EXPECT_THAT(message_of<UsageError>([&] { make(at::kLong, 0); }), HasSubstr("is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { make(at::kInt, std::int64_t{1} << 32); }),
              HasSubstr("is 4294967296"));
  EXPECT_EQ(make(at::kByte, 256)->size(), 1);
  EXPECT_EQ(make(at::kInt, std::int64_t{1} << 31)->size(), 1);
  EXPECT_EQ(make(at::kLong, std::numeric_limits<std::int64_t>::max())->size(), 1);
  EXPECT_EQ(make(at::kLong, 1)->get(0)[0].item<std::int64_t>(), 0);
}

TEST(RandomImages, HaveImageAndLabel) {
  const auto set = random_images(20, 3, 8, 6, 4, 1);
  EXPECT_THAT(set->columns(), ElementsAre("image", "label"));
  EXPECT_EQ(set->size(), 20);
  for (std::int64_t i = 0; i < 20; ++i) {
    const auto sample = set->get(i);
    EXPECT_EQ(sample[0].sizes(), (Sizes{3, 8, 6}));
    EXPECT_EQ(sample[0].scalar_type(), at::kByte);
    EXPECT_EQ(sample[1].dim(), 0);
    EXPECT_GE(sample[1].item<std::int64_t>(), 0);
    EXPECT_LT(sample[1].item<std::int64_t>(), 4);
  }
  EXPECT_THAT(message_of<UsageError>([] { random_images(1, 3, -8, 6); }),
              HasSubstr("sizes [3, -8, 6] in column 'image'"));
  EXPECT_THAT(message_of<UsageError>([] { random_images(1, 3, 8, 6, 0); }),
              HasSubstr("the bound of column 'label' is 0"));
}

}  // namespace
}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/dataset.h>

#include "files.h"
#include <trireme/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(Tensors, GiveTheirRows) {
  const auto set = tensors({{"x", at::arange(6).view({3, 2})}, {"y", at::arange(3)}});
  EXPECT_EQ(set->size(), 3);
  const auto sample = set->get(1);
  EXPECT_TRUE(at::equal(sample[0], at::arange(2, 4)));
  EXPECT_EQ(sample[1].item<std::int64_t>(), 1);
}

TEST(Tensors, AreNotCopiedWhereContiguous) {
  const at::Tensor x = at::arange(4);
  EXPECT_EQ(tensors({{"x", x}})->stored()[0].const_data_ptr(), x.const_data_ptr());
}

TEST(Tensors, OfUnequalLengthAreRefused) {
  EXPECT_THAT(
      message_of<UsageError>([] { tensors({{"x", at::zeros({3, 2})}, {"y", at::zeros({4})}}); }),
      HasSubstr("'x' has 3 rows, 'y' has 4"));
}

TEST(Tensors, WithoutRowsAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] { tensors({{"x", at::zeros({})}}); }),
              HasSubstr("column 'x' is not a dense"));
  EXPECT_THAT(message_of<UsageError>([] { tensors({{"x", at::Tensor()}}); }),
              HasSubstr("column 'x' is not a dense"));
}

TEST(Tensors, NeedDifferentNames) {
  EXPECT_THAT(
      message_of<UsageError>([] { tensors({{"x", at::zeros({1})}, {"x", at::zeros({1})}}); }),
      HasSubstr("'x' is there twice"));
  EXPECT_THAT(message_of<UsageError>([] { tensors({}); }), HasSubstr("without columns"));
}

TEST(Generator, ComputesItsSamples) {
  const auto set = generator(5, {"square"}, [](std::int64_t index) {
    return std::vector<at::Tensor>{at::scalar_tensor(index * index, at::kLong)};
  });
  EXPECT_EQ(set->size(), 5);
  EXPECT_EQ(set->get(4)[0].item<std::int64_t>(), 16);
  EXPECT_TRUE(set->stored().empty());
}

TEST(Generator, MustReturnATensorForEachColumn) {
  const auto set = generator(5, {"x", "y"},
                             [](std::int64_t) { return std::vector<at::Tensor>{at::zeros({1})}; });
  EXPECT_THAT(message_of<UsageError>([&] { set->get(3); }),
              HasSubstr("returned 1 tensors for sample 3, expected 2: 'x', 'y'"));
}

TEST(Generator, NeedsASizeAndAFunction) {
  EXPECT_THAT(message_of<UsageError>([] {
                generator(-1, {"x"}, [](std::int64_t) { return std::vector<at::Tensor>{}; });
              }),
              HasSubstr("-1 samples"));
  EXPECT_THAT(message_of<UsageError>([] { generator(1, {"x"}, nullptr); }),
              HasSubstr("without a function"));
}

TEST(Dataset, RefusesAnIndexOutsideOfIt) {
  const auto set = tensors({{"x", at::zeros({3})}});
  for (const std::int64_t index : {-1, 3}) {
    EXPECT_THAT(message_of<UsageError>([&] { set->get(index); }),
                HasSubstr(join_message("sample ", index, " of a data set of 3 samples")));
  }
}

}  // namespace
}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/batch.h>

#include "files.h"
#include <trireme/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(Batch, FindsColumnsByName) {
  const Batch batch{{"image", "label"}, {at::zeros({3, 2}), at::zeros({3})}};
  EXPECT_EQ(batch["image"].dim(), 2);
  EXPECT_EQ(batch["label"].dim(), 1);
  EXPECT_EQ(batch.rows(), 3);
}

TEST(Batch, ListsItsColumnsWhereTheNameIsUnknown) {
  const Batch batch{{"image", "label"}, {at::zeros({3, 2}), at::zeros({3})}};
  EXPECT_THAT(message_of<UsageError>([&] { batch["lable"]; }),
              HasSubstr("no column 'lable'; the columns are 'image', 'label'"));
}

TEST(Batch, HasNoRowsWithoutColumns) { EXPECT_EQ(Batch{}.rows(), 0); }

TEST(Batch, KnowsWhichRowsOnlyFillItUp) {
  const Batch batch{{"x"}, {at::arange(5)}, 2};
  EXPECT_EQ(batch.rows(), 5);
  EXPECT_EQ(batch.valid_rows(), 3);
  const at::Tensor mask = batch.mask();
  EXPECT_EQ(mask.scalar_type(), at::kBool);
  EXPECT_TRUE(at::equal(mask, at::arange(5).lt(3)));
  EXPECT_TRUE(at::equal(batch.without_padding()["x"], at::arange(3)));
  EXPECT_EQ(batch.without_padding().padded_rows, 0);
  EXPECT_EQ(Batch{}.mask().size(0), 0);
}

}  // namespace
}  // namespace trireme::data

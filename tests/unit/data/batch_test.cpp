// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/batch.h>

#include "files.h"
#include <trireme/base/error.h>

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

}  // namespace
}  // namespace trireme::data

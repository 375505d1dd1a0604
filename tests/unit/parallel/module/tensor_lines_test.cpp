// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/tensor_lines.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace trireme::detail {
namespace {

TEST(TensorLines, ReadBackAsTheyWereWritten) {
  const std::string text = to_lines({{"a name", torch::zeros({2, 3}, torch::kHalf)},
                                     {"missing", torch::Tensor()},
                                     {"", torch::zeros({}, torch::kLong)}});
  const std::vector<TensorLine> lines = parse_lines(text);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].name, "a name");
  EXPECT_EQ(lines[0].type, at::kHalf);
  EXPECT_EQ(lines[0].sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(lines[1].name, "");
  EXPECT_EQ(lines[1].type, at::kLong);
  EXPECT_TRUE(lines[1].sizes.empty());
}

TEST(TensorLines, AreEmptyForNothing) {
  EXPECT_EQ(to_lines({}), "");
  EXPECT_TRUE(parse_lines("").empty());
}

}  // namespace
}  // namespace trireme::detail

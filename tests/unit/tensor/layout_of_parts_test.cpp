// SPDX-License-Identifier: Apache-2.0
// Which axes of a mesh cut a tensor into given numbers of parts.
#include <trireme/tensor/operator_strategy.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(LayoutOfParts, TakesTheFirstAxesThatFit) {
  const auto mesh = DeviceMesh::unconnected({{"a", 2}, {"b", 2}, {"c", 3}});
  EXPECT_EQ(layout_of_parts(mesh, {2, 1}), Layout(mesh, {{"a", Shard{0}}}));
  EXPECT_EQ(layout_of_parts(mesh, {2, 2}), Layout(mesh, {{"a", Shard{0}}, {"b", Shard{1}}}));
  EXPECT_EQ(layout_of_parts(mesh, {1, 3}), Layout(mesh, {{"c", Shard{1}}}));
  EXPECT_EQ(layout_of_parts(mesh, {6, 2}),
            Layout(mesh, {{"a", Shard{0}}, {"b", Shard{1}}, {"c", Shard{0}}}));
  EXPECT_EQ(layout_of_parts(mesh, {12}), Layout(mesh, {Shard{0}, Shard{0}, Shard{0}}));
  EXPECT_EQ(layout_of_parts(mesh, {1, 1, 1}), Layout::replicated(mesh));
  EXPECT_EQ(layout_of_parts(mesh, {}), Layout::replicated(mesh));
}

// The first axis that fits may be needed by another dim.
TEST(LayoutOfParts, ComesBackToAnAxisThatItTookTooSoon) {
  const auto mesh = DeviceMesh::unconnected({{"a", 2}, {"b", 4}});
  EXPECT_EQ(layout_of_parts(mesh, {4, 2}), Layout(mesh, {{"a", Shard{1}}, {"b", Shard{0}}}));
}

TEST(LayoutOfParts, PassesOverAxesOfOneRank) {
  const auto mesh = DeviceMesh::unconnected({{"a", 1}, {"b", 2}});
  EXPECT_EQ(layout_of_parts(mesh, {1, 2}), Layout(mesh, {{"b", Shard{1}}}));
}

TEST(OperatorStrategyText, ReadsAsItIsWritten) {
  EXPECT_EQ(to_string(OperatorStrategy{{4, 1}, {1, 1}}), "{{4, 1}, {1, 1}}");
  EXPECT_EQ(to_string(OperatorStrategy{{2}, {}}), "{{2}, {}}");
  EXPECT_EQ(to_string(OperatorStrategy{}), "{}");
}

}  // namespace
}  // namespace trireme

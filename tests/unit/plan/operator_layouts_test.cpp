// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/operator_layouts.h>

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

TEST(OperatorLayouts, AreWrittenAndRead) {
  const OperatorLayouts all = {
      {.pattern = "blocks.*.mlp_output", .result = {"tensor", Shard{1}}},
      {.pattern = "aten::_softmax", .parts = {{1, 4, 1, 1}}},
      {.pattern = "aten::add.Tensor", .parts = {{2, 1}, {}, {16, 3}}},
      {.pattern = "head",
       .parts = {{4, 1}, {1, 1}},
       .result = {{"rows", Replicate{}}, {"columns", Shard{0}}}},
  };
  EXPECT_EQ(to_string(all[0]), "blocks.*.mlp_output gives Shard(1) on tensor");
  EXPECT_EQ(to_string(all[1]), "aten::_softmax takes {{1, 4, 1, 1}}");
  EXPECT_EQ(to_string(all[2]), "aten::add.Tensor takes {{2, 1}, {}, {16, 3}}");
  EXPECT_EQ(to_string(all[3]),
            "head takes {{4, 1}, {1, 1}} and gives Replicate on rows and Shard(0) on columns");
  for (const OperatorLayout& layout : all) {
    EXPECT_EQ(parse_operator_layout(to_string(layout)), layout) << to_string(layout);
  }
  EXPECT_EQ(parse_operator_layout("  head  takes {{4,1},{1,1}}  "),
            (OperatorLayout{.pattern = "head", .parts = {{4, 1}, {1, 1}}}));
}

TEST(OperatorLayouts, AreNothingElse) {
  for (const std::string text :
       {"", "head", "head takes", "head gives", "head takes {4, 1}", "head takes {{4 1}}",
        "head takes {{4, }}", "head takes {{-1}}", "head takes {{99999999999}}",
        "head gives Shard on tensor", "head gives Shard(1)", "head gives plain",
        "head gives Replicate", "head gives Shard(0) on tensor if there",
        "head -> Shard(0) on tensor", "head takes {{1}} gives"}) {
    EXPECT_EQ(parse_operator_layout(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_operator_layout("head takes {" + std::string(2000, '{')), std::nullopt);
}

TEST(OperatorLayouts, NameModulesOrOperators) {
  EXPECT_TRUE(names_operators({.pattern = "aten::*"}));
  EXPECT_FALSE(names_operators({.pattern = "blocks.*"}));
}

}  // namespace
}  // namespace trireme

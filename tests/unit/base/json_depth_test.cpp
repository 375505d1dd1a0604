// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/json_depth.h>

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

TEST(JsonDepth, CountsListsAndObjectsInEachOther) {
  EXPECT_EQ(json_depth(""), 0U);
  EXPECT_EQ(json_depth("7"), 0U);
  EXPECT_EQ(json_depth("[]"), 1U);
  EXPECT_EQ(json_depth(R"({"a": [1, {"b": 2}], "c": []})"), 3U);
  EXPECT_EQ(json_depth(std::string(1'000'000, '[')), 1'000'000U);
}

TEST(JsonDepth, LeavesTextsOut) {
  EXPECT_EQ(json_depth(R"(["[[[", "\"[[", "\\", "["])"), 1U);
  EXPECT_EQ(json_depth(R"(["\\\"[", [0]])"), 2U);
}

TEST(JsonDepth, IsNotFooledByWhatCloses) {
  EXPECT_EQ(json_depth("]]]][["), 2U);
  EXPECT_EQ(json_depth("\"unfinished [["), 0U);
  EXPECT_EQ(json_depth("\"\\"), 0U);
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/format_ranks.h>

#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

using Ranks = std::vector<int>;

TEST(ListedRanks, ShortensThoseThatFollowEachOther) {
  EXPECT_EQ(format_ranks(Ranks{3}), "rank 3");
  EXPECT_EQ(format_ranks(Ranks{0, 1, 4}), "ranks 0, 1, 4");
  EXPECT_EQ(format_ranks(Ranks{0, 1, 2, 3, 7, 9, 10, 11}), "ranks 0 to 3, 7, 9 to 11");
}

TEST(ListedRanks, SaysWhoTheyAreInTheWorld) {
  const Ranks world_ranks = {0, 2, 5};
  EXPECT_EQ(format_ranks(Ranks{1}, world_ranks), "rank 1 (rank 2 of the world)");
  EXPECT_EQ(format_ranks(Ranks{0, 2}, world_ranks), "ranks 0, 2 (ranks 0, 5 of the world)");
  EXPECT_EQ(format_ranks(Ranks{0}, world_ranks), "rank 0");
}

}  // namespace
}  // namespace trireme

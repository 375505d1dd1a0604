// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/placement.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <thread>
#include <unordered_set>

namespace trireme {
namespace {

using test::message_of;
using testing::HasSubstr;

static_assert(Placement() == Placement(Replicate{}));
static_assert(Placement(Shard{2}).dim() == 2 && Placement(Shard{2}).level() == -1);
static_assert(Placement(Shard{1}).is_shard(1) && !Placement(Shard{1}).is_shard(0));
static_assert(!Placement(Replicate{}).is_shard(-1));
static_assert(Placement(Partial{PartialOp::kMaximum}).is_partial(PartialOp::kMaximum));
static_assert(!Placement(Partial{}).is_partial(PartialOp::kMaximum));

std::vector<Placement> different_ones() {
  return {Replicate{},
          Shard{0},
          Shard{1},
          Shard{0, 0},
          Shard{0, 1},
          Partial{},
          Partial{PartialOp::kAverage},
          Partial{PartialOp::kMaximum},
          Partial{PartialOp::kMinimum},
          Partial{PartialOp::kProduct},
          FlatShard{},
          FlatShard{{{0, 12}, {12, 11}}},
          FlatShard{{{0, 12}, {12, 12}}}};
}

TEST(Placement, IsOneOfFourKinds) {
  using Kind = Placement::Kind;
  EXPECT_EQ(Placement(Replicate{}).kind(), Kind::kReplicate);
  EXPECT_EQ(Placement(Shard{3}).kind(), Kind::kShard);
  EXPECT_EQ(Placement(Partial{}).kind(), Kind::kPartial);
  EXPECT_EQ(Placement(Partial{PartialOp::kMinimum}).op(), PartialOp::kMinimum);
  const Placement flat = FlatShard{{{4, 3}, {0, 4}}};
  EXPECT_TRUE(flat.is_flat_shard());
  EXPECT_THAT(flat.ranges(), testing::ElementsAre(FlatRange{4, 3}, FlatRange{0, 4}));
  EXPECT_TRUE(Placement(Shard{0}).ranges().empty());
}

TEST(Placement, PrintsAsItIsWritten) {
  EXPECT_EQ(Placement().to_string(), "Replicate");
  EXPECT_EQ(Placement(Shard{0}).to_string(), "Shard(0)");
  EXPECT_EQ(Placement(Shard{1, 1}).to_string(), "Shard(1, level 1)");
  EXPECT_EQ(Placement(Shard{-1}).to_string(), "Shard(-1)");
  EXPECT_EQ(Placement(Partial{}).to_string(), "Partial(sum)");
  EXPECT_EQ(Placement(Partial{PartialOp::kAverage}).to_string(), "Partial(average)");
  EXPECT_EQ(Placement(Partial{PartialOp::kMaximum}).to_string(), "Partial(maximum)");
  EXPECT_EQ(Placement(Partial{PartialOp::kMinimum}).to_string(), "Partial(minimum)");
  EXPECT_EQ(Placement(Partial{PartialOp::kProduct}).to_string(), "Partial(product)");
  EXPECT_EQ(Placement(FlatShard{{{0, 12}, {12, 11}}}).to_string(), "FlatShard(0+12, 12+11)");
  EXPECT_EQ(Placement(FlatShard{}).to_string(), "FlatShard()");
}

TEST(Placement, EqualsWhatSaysTheSame) {
  const std::vector<Placement> some = different_ones();
  const std::vector<Placement> again = different_ones();
  std::unordered_set<Placement> known(some.begin(), some.end());
  EXPECT_EQ(known.size(), some.size());
  for (std::size_t a = 0; a < some.size(); ++a) {
    EXPECT_EQ(some[a].hash(), again[a].hash());
    EXPECT_TRUE(known.contains(again[a]));
    for (std::size_t b = 0; b < some.size(); ++b) {
      EXPECT_EQ(some[a] == again[b], a == b) << some[a].to_string() << ", " << some[b].to_string();
    }
  }
}

TEST(Placement, KeepsEqualRangesOnceForAllThreads) {
  std::vector<const void*> seen(8);
  {
    std::vector<std::jthread> threads;
    for (auto& slot : seen) {
      threads.emplace_back([&slot] {
        for (std::int64_t length = 0; length < 200; ++length) {
          slot = &Placement(FlatShard{{{0, length}, {length, 7}}}).ranges();
        }
      });
    }
  }
  for (const void* ranges : seen) EXPECT_EQ(ranges, seen.front());
}

TEST(Placement, RefusesDimsThatNoTensorHas) {
  const auto error = [](Shard shard) {
    return message_of<UsageError>([=] { (void)Placement(shard); });
  };
  EXPECT_THAT(error(Shard{256}), HasSubstr("Shard(256, level -1): dims and levels go up to 127"));
  EXPECT_THAT(error(Shard{0, 300}), HasSubstr("Shard(0, level 300)"));
  EXPECT_THAT(error(Shard{-129}), HasSubstr("Shard(-129"));
}

}  // namespace
}  // namespace trireme

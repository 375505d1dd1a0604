// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/collective_cost.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using testing::HasSubstr;

constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kAllGather,
                                     Collective::kReduceScatter, Collective::kAllToAll,
                                     Collective::kBroadcast};

TEST(CollectiveCost, IsNothingForOneRank) {
  for (const Collective collective : kCollectives) {
    EXPECT_EQ(bytes_sent(collective, 1e9, 1), 0);
    EXPECT_EQ(seconds(collective, 1e9, 1), 0);
  }
}

// What each rank sends in a simulated exchange, part by part.
TEST(CollectiveCost, CountsTheBytesOfARing) {
  for (const std::int64_t ranks : {2, 3, 4, 7}) {
    const double part = 30;
    const double whole = part * static_cast<double>(ranks);
    double around = 0;
    for (std::int64_t step = 1; step < ranks; ++step) around += part;
    EXPECT_DOUBLE_EQ(bytes_sent(Collective::kAllGather, whole, ranks), around);
    EXPECT_DOUBLE_EQ(bytes_sent(Collective::kReduceScatter, whole, ranks), around);
    EXPECT_DOUBLE_EQ(bytes_sent(Collective::kAllReduce, whole, ranks), 2 * around);
    EXPECT_DOUBLE_EQ(bytes_sent(Collective::kBroadcast, whole, ranks), 2 * around);
    // Every rank holds one part and sends a share of it to each other rank.
    EXPECT_DOUBLE_EQ(bytes_sent(Collective::kAllToAll, whole, ranks),
                     around / static_cast<double>(ranks));
  }
}

TEST(CollectiveCost, TakesLatencyByStepsAndBandwidthByBytes) {
  const Link link = {.latency = 10, .bytes_per_second = 4};
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllGather, 80, 4, link), 3 * 10 + 60. / 4);
  EXPECT_DOUBLE_EQ(seconds(Collective::kReduceScatter, 80, 4, link), 3 * 10 + 60. / 4);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, 80, 4, link), 6 * 10 + 120. / 4);
  EXPECT_DOUBLE_EQ(seconds(Collective::kAllToAll, 80, 4, link), 3 * 10 + 15. / 4);
  EXPECT_DOUBLE_EQ(seconds(Collective::kBroadcast, 80, 4, link), (2 + 3) * 10 + 120. / 4);
  EXPECT_DOUBLE_EQ(seconds(Collective::kBroadcast, 0, 5, link), (3 + 4) * 10);
}

TEST(CollectiveCost, GrowsWithBytesAndRanks) {
  for (const Collective collective : kCollectives) {
    for (std::int64_t ranks = 2; ranks < 9; ++ranks) {
      EXPECT_GT(seconds(collective, 1000, ranks), seconds(collective, 0, ranks));
      EXPECT_GT(seconds(collective, 0, ranks), seconds(collective, 0, ranks - 1));
    }
  }
}

TEST(CollectiveCost, PutsAnAllReduceAboveItsHalves) {
  for (const std::int64_t ranks : {2, 5, 8}) {
    EXPECT_DOUBLE_EQ(seconds(Collective::kAllReduce, 1e6, ranks),
                     seconds(Collective::kReduceScatter, 1e6, ranks) +
                         seconds(Collective::kAllGather, 1e6, ranks));
    EXPECT_LT(seconds(Collective::kAllToAll, 1e6, ranks),
              seconds(Collective::kAllGather, 1e6, ranks));
  }
}

TEST(CollectiveCost, RefusesWhatNoGroupAndNoLinkHas) {
  const auto cost = [](double bytes, std::int64_t ranks) {
    return message_of<UsageError>([&] { seconds(Collective::kAllReduce, bytes, ranks); });
  };
  EXPECT_THAT(cost(-1, 2), HasSubstr("-1 bytes over 2 ranks"));
  EXPECT_THAT(cost(8, 0), HasSubstr("8 bytes over 0 ranks"));
  EXPECT_THAT(cost(std::numeric_limits<double>::quiet_NaN(), 2), HasSubstr("nan bytes"));
  EXPECT_THAT(message_of<UsageError>([] { bytes_sent(Collective::kAllToAll, 8, -3); }),
              HasSubstr("over -3 ranks"));
  for (const Link& link : std::vector<Link>{{.latency = -1, .bytes_per_second = 1},
                                            {.latency = 0, .bytes_per_second = 0}}) {
    EXPECT_THAT(message_of<UsageError>([&] { seconds(Collective::kAllGather, 8, 2, link); }),
                HasSubstr("bandwidth must be above 0"));
  }
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/collective_time.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>

#include <gtest/gtest.h>

namespace trireme::cluster {
namespace {

constexpr double kGiB = 1 << 30;

// Four hosts of eight devices whose links reach all of their bandwidth.
Cluster four_hosts() {
  return {.name = "test",
          .devices = {{.name = "gpu",
                       .teraflops = {.float32 = 10},
                       .memory_gib = 16,
                       .memory_gb_per_s = 500,
                       .efficiency = {.link = 1}}},
          .hosts = {{.count = 4, .devices = 8, .device = "gpu"}},
          .links = {{.level = LinkLevel::kHost, .latency_us = 1, .gb_per_s = 100},
                    {.level = LinkLevel::kCluster, .latency_us = 10, .gb_per_s = 10}}};
}

TEST(GroupShape, CountsRanksOfAHostAndSisters) {
  const Cluster cluster = four_hosts();
  EXPECT_EQ(
      group_shape(cluster, 0, 8, 1),
      (GroupShape{.ranks = 8, .ranks_per_host = 8, .hosts = 1, .pods = 1, .groups_per_host = 1}));
  EXPECT_EQ(
      group_shape(cluster, 0, 4, 8),
      (GroupShape{.ranks = 4, .ranks_per_host = 1, .hosts = 4, .pods = 1, .groups_per_host = 8}));
  EXPECT_EQ(
      group_shape(cluster, 0, 16, 2),
      (GroupShape{.ranks = 16, .ranks_per_host = 4, .hosts = 4, .pods = 1, .groups_per_host = 2}));
  EXPECT_THROW((void)group_shape(cluster, 0, 5, 8), UsageError);
}

TEST(CollectiveTime, InAHostIsThatOfARing) {
  const Cluster cluster = four_hosts();
  const GroupShape shape = group_shape(cluster, 0, 8, 1);
  const double expected = 2.0 * 7 / 8 * kGiB / 100e9 + 14 * 1e-6;
  EXPECT_NEAR(seconds(cluster, Collective::kAllReduce, kGiB, shape), expected, 1e-9);
  EXPECT_EQ(seconds(cluster, Collective::kAllReduce, kGiB, group_shape(cluster, 0, 1, 1)), 0);
}

TEST(CollectiveTime, BetweenHostsUsesThePortsOfAllMembers) {
  const Cluster cluster = four_hosts();
  // Eight ports of 10 GB/s leave each host: 80 GB/s, slower than the 100 GB/s inside.
  const double whole =
      seconds(cluster, Collective::kAllGather, kGiB, group_shape(cluster, 0, 32, 1));
  EXPECT_NEAR(whole, 31.0 / 32 * kGiB / 80e9, 0.1 * whole);
  // One member a host has one port.
  const double thin = seconds(cluster, Collective::kAllGather, kGiB, group_shape(cluster, 0, 4, 8));
  EXPECT_NEAR(thin, 3.0 / 4 * kGiB / 10e9, 0.1 * thin);
}

TEST(CollectiveTime, SisterGroupsShareAPort) {
  Cluster cluster = four_hosts();
  cluster.links[1].shared_by = 8;
  cluster.links[1].gb_per_s = 80;
  // Eight groups of one member a host each have an eighth of the port of a host.
  const double shared =
      seconds(cluster, Collective::kAllGather, kGiB, group_shape(cluster, 0, 4, 8));
  EXPECT_NEAR(shared, 3.0 / 4 * kGiB / 10e9, 0.1 * shared);
}

TEST(CollectiveTime, OfSmallTensorsBetweenHostsTakesTrees) {
  Cluster cluster = four_hosts();
  cluster.hosts[0].count = 64;
  const double small = seconds(cluster, Collective::kAllReduce, 8, group_shape(cluster, 0, 512, 1));
  // 2 log2(64) steps between hosts and 14 inside, not the 1,022 steps of a ring.
  EXPECT_NEAR(small, 12 * 10e-6 + 14 * 1e-6, 1e-5);
}

TEST(CollectiveTime, GrowsWithBytesAndHosts) {
  Cluster cluster = four_hosts();
  cluster.hosts[0].count = 128;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kBroadcast}) {
    double before = 0;
    for (const std::int64_t ranks : {16, 64, 256, 1024}) {
      const GroupShape shape = group_shape(cluster, 0, ranks, 1);
      const double time = seconds(cluster, collective, kGiB, shape);
      EXPECT_GE(time, seconds(cluster, collective, kGiB / 2, shape));
      if (collective != Collective::kAllToAll) {
        EXPECT_GE(time, 0.99 * before) << ranks;
      }
      before = time;
    }
  }
}

TEST(MessageTime, IsThatOfTheLinkBetween) {
  const Cluster cluster = four_hosts();
  EXPECT_NEAR(message_seconds(cluster, 1e9, 0, 7), 1e-6 + 0.01, 1e-9);
  EXPECT_NEAR(message_seconds(cluster, 1e9, 0, 8), 10e-6 + 0.1, 1e-9);
  EXPECT_THROW((void)message_seconds(cluster, 1, 0, 32), UsageError);
}

TEST(MessageTime, KnowsPods) {
  Cluster cluster = four_hosts();
  cluster.links.insert(cluster.links.begin() + 1,
                       {.level = LinkLevel::kPod, .latency_us = 5, .gb_per_s = 50, .hosts = 2});
  EXPECT_NEAR(message_seconds(cluster, 1e9, 0, 8), 5e-6 + 0.02, 1e-9);
  EXPECT_NEAR(message_seconds(cluster, 1e9, 8, 16), 10e-6 + 0.1, 1e-9);
}

TEST(CollectiveTime, InsideAHostFollowsTheCurveOfTheNearestGroup) {
  Cluster cluster = four_hosts();
  cluster.collectives = {
      {.name = "all_reduce", .ranks = 2, .curve = {.sizes = {1}, .microseconds = {100}}},
      {.name = "all_reduce", .ranks = 8, .curve = {.sizes = {1}, .microseconds = {300}}},
      {.name = "message", .ranks = 2, .curve = {.sizes = {1}, .microseconds = {50}}}};
  const auto of_ranks = [&](std::int64_t ranks) {
    return seconds(cluster, Collective::kAllReduce, 2e6, group_shape(cluster, 0, ranks, 1));
  };
  EXPECT_NEAR(of_ranks(2), 200e-6, 1e-9);
  EXPECT_NEAR(of_ranks(8), 600e-6, 1e-9);
  EXPECT_NEAR(message_seconds(cluster, 2e6, 0, 1), 100e-6, 1e-9);
  Cluster without = four_hosts();
  EXPECT_EQ(of_ranks(16),
            seconds(without, Collective::kAllReduce, 2e6, group_shape(without, 0, 16, 1)));
  EXPECT_EQ(message_seconds(cluster, 2e6, 0, 8), message_seconds(without, 2e6, 0, 8));
}

}  // namespace
}  // namespace trireme::cluster

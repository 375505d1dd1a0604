// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/rank_groups.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

// Two hosts of four devices.
cluster::Cluster two_hosts() {
  return {.name = "test",
          .devices = {{.name = "gpu",
                       .teraflops = {.float32 = 10},
                       .memory_gib = 16,
                       .memory_gb_per_s = 500,
                       .efficiency = {.link = 1}}},
          .hosts = {{.count = 2, .devices = 4, .device = "gpu"}},
          .links = {{.level = cluster::LinkLevel::kHost, .latency_us = 1, .gb_per_s = 100},
                    {.level = cluster::LinkLevel::kCluster, .latency_us = 20, .gb_per_s = 10}}};
}

TEST(RankGroups, LieAsTheAxesOfThePlan) {
  const Plan plan = {.mesh = {{"data", 2}, {"tensor", 4}}};
  const cluster::Cluster cluster = two_hosts();
  const RankGroups groups(plan, cluster);
  EXPECT_EQ(groups.num_ranks(), 8);
  EXPECT_EQ(groups.size("tensor"), 4);
  EXPECT_EQ(groups.stride("tensor"), 1);
  EXPECT_EQ(groups.size("data"), 2);
  EXPECT_EQ(groups.stride("data"), 4);
  EXPECT_EQ(groups.size("pipe"), 1);
}

TEST(RankGroups, HaveTheLinksOfTheLevelThatTheyCross) {
  const cluster::Cluster cluster = two_hosts();
  for (const bool is_tensor_last : {true, false}) {
    const Plan plan = {.mesh = is_tensor_last ? std::vector<MeshAxis>{{"data", 2}, {"tensor", 4}}
                                              : std::vector<MeshAxis>{{"tensor", 4}, {"data", 2}}};
    const RankGroups groups(plan, cluster);
    const Link link = groups.links("tensor").of(Collective::kAllGather);
    if (is_tensor_last) {
      EXPECT_NEAR(link.latency, 1e-6, 1e-12);
      EXPECT_NEAR(link.bytes_per_second, 100e9, 1e3);
    } else {  // two ranks of each group are on each host
      EXPECT_GT(link.latency, 1e-6);
      EXPECT_LT(link.bytes_per_second, 50e9);
    }
    EXPECT_EQ(groups.links("pipe"), cluster::CollectiveLinks());
  }
}

// Hosts of six devices divide groups of four unevenly: the second group is on two hosts.
TEST(RankGroups, AreTimedByTheSlowestOfAnAxis) {
  cluster::Cluster uneven = two_hosts();
  uneven.hosts.front() = {.count = 2, .devices = 6, .device = "gpu"};
  cluster::Cluster one_host = uneven;
  one_host.hosts.front() = {.count = 1, .devices = 12, .device = "gpu"};
  const Plan plan = {.mesh = {{"data", 3}, {"tensor", 4}}};
  constexpr double kBytes = 1e8;
  const double slow = RankGroups(plan, uneven).seconds("tensor", Collective::kAllReduce, kBytes);
  const double fast = RankGroups(plan, one_host).seconds("tensor", Collective::kAllReduce, kBytes);
  EXPECT_GT(slow, 2 * fast);

  // Hosts that differ: the groups of the first hosts are inside of one.
  uneven.hosts = {{.count = 2, .devices = 8, .device = "gpu"},
                  {.count = 2, .devices = 4, .device = "gpu"}};
  const Plan whole = {.mesh = {{"data", 3}, {"tensor", 8}}};
  EXPECT_GT(RankGroups(whole, uneven).seconds("tensor", Collective::kAllReduce, kBytes), 2 * fast);
}

}  // namespace
}  // namespace trireme

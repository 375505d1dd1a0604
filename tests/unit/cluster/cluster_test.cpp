// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/cluster.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::cluster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Cluster small_cluster() {
  return {.name = "small",
          .devices = {{.name = "fast",
                       .teraflops = {.float32 = 10},
                       .memory_gib = 16,
                       .memory_gb_per_s = 500}},
          .hosts = {{.count = 2, .devices = 4, .device = "fast"}},
          .links = {{.level = LinkLevel::kHost, .latency_us = 1, .gb_per_s = 100},
                    {.level = LinkLevel::kCluster, .latency_us = 10, .gb_per_s = 10}}};
}

std::string message_of(const Cluster& cluster) {
  try {
    check_cluster(cluster);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, OfWholeFiguresIsAccepted) { EXPECT_EQ(message_of(small_cluster()), ""); }

TEST(Cluster, NamesEverythingThatIsMissing) {
  Cluster cluster = small_cluster();
  cluster.devices[0].memory_gb_per_s = 0;
  cluster.devices[0].teraflops = {};
  cluster.hosts[0].device = "fats";
  cluster.links.clear();
  const std::string message = message_of(cluster);
  EXPECT_THAT(message, HasSubstr("device fast: no memory_gb_per_s"));
  EXPECT_THAT(message, HasSubstr("device fast: no peak rate in teraflops"));
  EXPECT_THAT(message, HasSubstr("device 'fats' is not described"));
  EXPECT_THAT(message, HasSubstr("several devices, and no links"));
}

TEST(Cluster, NeedsLinksBetweenHosts) {
  Cluster cluster = small_cluster();
  cluster.links.pop_back();
  EXPECT_THAT(message_of(cluster), HasSubstr("several hosts, and no links between them"));
}

TEST(Cluster, RefusesLevelsOutOfOrder) {
  Cluster cluster = small_cluster();
  std::swap(cluster.links[0], cluster.links[1]);
  EXPECT_THAT(message_of(cluster), HasSubstr("levels go from host to pod to cluster"));
}

TEST(Cluster, RefusesAMeasuredCurveThatIsNone) {
  Cluster cluster = small_cluster();
  cluster.products = {
      {.device = "fast", .dtype = "float32", .gigaflops = {1, 2}, .teraflops = {1}}};
  EXPECT_THAT(message_of(cluster), HasSubstr("products of fast in float32"));
}

TEST(Cluster, HasTheDevicesOfItsRanks) {
  const Cluster used = small_cluster().with_ranks(6);
  EXPECT_EQ(used.num_devices(), 6);
  ASSERT_EQ(used.hosts.size(), 2);
  EXPECT_EQ(used.hosts[0].count, 1);
  EXPECT_EQ(used.hosts[0].devices, 4);
  EXPECT_EQ(used.hosts[1].count, 1);
  EXPECT_EQ(used.hosts[1].devices, 2);
}

TEST(Cluster, GrowsToAsManyHostsAsNeeded) {
  Cluster cluster = small_cluster();
  cluster.hosts[0].count = 0;
  EXPECT_EQ(cluster.with_ranks(4096).num_devices(), 4096);
  EXPECT_THROW((void)cluster.num_devices(), UsageError);
}

TEST(Cluster, RefusesMoreRanksThanDevices) {
  try {
    (void)small_cluster().with_ranks(9);
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has 8 devices, and 9 ranks need one each"));
  }
  EXPECT_THROW((void)small_cluster().with_ranks(0), UsageError);
}

TEST(Cluster, NamesItsKindsForAnUnknownOne) {
  try {
    (void)small_cluster().device("slow");
    FAIL() << "expected an error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no device 'slow'"));
  }
}

TEST(Cluster, WarnsOfGigabitsEnteredAsGigabytes) {
  Cluster cluster = small_cluster();
  EXPECT_THAT(implausible_figures(cluster), ElementsAre());
  cluster.links[1].gb_per_s = 400;
  EXPECT_THAT(implausible_figures(cluster), ElementsAre(HasSubstr("400 Gbit/s are 50")));
}

}  // namespace
}  // namespace trireme::cluster

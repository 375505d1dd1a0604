// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/cluster/collective_time.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cmath>

namespace trireme::cluster {
namespace {

using test::message_of;
using testing::HasSubstr;

constexpr Collective kAllKinds[] = {Collective::kAllReduce, Collective::kAllGather,
                                    Collective::kReduceScatter, Collective::kAllToAll,
                                    Collective::kBroadcast};

// Four hosts of eight devices. Links inside of them have a quarter of the latency, and ten times
// the bandwidth.
Cluster hosts_of_eight() {
  return {.name = "test",
          .devices = {{.name = "gpu",
                       .teraflops = {.float32 = 10},
                       .memory_gib = 16,
                       .memory_gb_per_s = 500,
                       .efficiency = {.link = 0.5}}},
          .hosts = {{.count = 4, .devices = 8, .device = "gpu"}},
          .links = {{.level = LinkLevel::kHost, .latency_us = 2, .gb_per_s = 200},
                    {.level = LinkLevel::kCluster, .latency_us = 8, .gb_per_s = 20}}};
}

TEST(CollectiveLinks, WithinAHostAreTheLinkOfTheHost) {
  const Cluster cluster = hosts_of_eight();
  const CollectiveLinks links = collective_links(cluster, group_shape(cluster, 0, 8, 1));
  for (const Collective kind : kAllKinds) {
    EXPECT_NEAR(links.of(kind).latency, 2e-6, 1e-12);
    EXPECT_NEAR(links.of(kind).bytes_per_second, 100e9, 1e3);  // half of it is reached
  }
}

TEST(CollectiveLinks, AcrossHostsGiveTheTimesOfTheClusterForNothingAndForMuch) {
  const Cluster cluster = hosts_of_eight();
  for (const auto& [ranks, stride] : {std::pair{32, 1}, {4, 8}, {8, 4}}) {
    const GroupShape shape = group_shape(cluster, 0, ranks, stride);
    const CollectiveLinks links = collective_links(cluster, shape);
    for (const Collective kind : kAllKinds) {
      for (const double bytes : {0., 16. * (1 << 20)}) {
        const double expected = seconds(cluster, kind, bytes, shape);
        EXPECT_NEAR(trireme::seconds(kind, bytes, ranks, links.of(kind)), expected,
                    1e-9 * expected);
      }
    }
  }
}

TEST(CollectiveLinks, FollowTheCurveOfTheKindThatWasMeasured) {
  Cluster cluster = hosts_of_eight();
  cluster.collectives = {
      {.name = "all_gather", .ranks = 8, .curve = {.sizes = {1}, .microseconds = {700}}}};
  const CollectiveLinks links = collective_links(cluster, group_shape(cluster, 0, 8, 1));
  EXPECT_NEAR(links.of(Collective::kAllGather).latency, 100e-6, 1e-9);  // 700 us in 7 steps
  EXPECT_NEAR(links.of(Collective::kAllReduce).latency, 2e-6, 1e-12);
}

TEST(CollectiveLinks, HaveABandwidthAlsoWhereACurveIsFlat) {
  Cluster cluster = hosts_of_eight();
  cluster.collectives = {
      {.name = "all_to_all", .ranks = 8, .curve = {.sizes = {1, 1000}, .microseconds = {50, 50}}}};
  const Link link =
      collective_links(cluster, group_shape(cluster, 0, 8, 1)).of(Collective::kAllToAll);
  EXPECT_TRUE(std::isfinite(link.bytes_per_second));
  EXPECT_GT(link.bytes_per_second, 0);
}

TEST(CollectiveLinks, OfOneRankAreTheDefault) {
  const Cluster cluster = hosts_of_eight();
  EXPECT_EQ(collective_links(cluster, group_shape(cluster, 0, 1, 1)), CollectiveLinks());
  EXPECT_NE(collective_links(cluster, group_shape(cluster, 0, 8, 1)), CollectiveLinks());
}

TEST(CollectiveLinks, NeedTheLinksThatTheGroupCrosses) {
  Cluster cluster = hosts_of_eight();
  cluster.links.pop_back();
  EXPECT_NO_THROW(collective_links(cluster, group_shape(cluster, 0, 8, 1)));
  EXPECT_THAT(
      message_of<UsageError>([&] { collective_links(cluster, group_shape(cluster, 0, 16, 1)); }),
      HasSubstr("cluster test has no links between hosts"));
}

}  // namespace
}  // namespace trireme::cluster

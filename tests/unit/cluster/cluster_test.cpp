// SPDX-License-Identifier: Apache-2.0
// Descriptions as plain data: what is missing, what is implausible, and clusters for some ranks.
#include <trireme/cluster/cluster.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace trireme::cluster {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

TEST(Cluster, OfWholeFiguresIsAccepted) {
  EXPECT_THAT(problems_of(small_cluster()), IsEmpty());
  EXPECT_NO_THROW(check_cluster(small_cluster()));
}

TEST(Cluster, NamesEverythingThatIsMissing) {
  EXPECT_THAT(problems_of({}), ElementsAre("no devices", "no hosts"));
  Cluster cluster = small_cluster();
  cluster.devices.emplace_back();
  cluster.hosts[0].device.clear();
  cluster.links[0].gb_per_s = 0;
  EXPECT_THAT(problems_of(cluster),
              ElementsAre("devices 1: no name", "devices 1: no peak rate in teraflops",
                          "devices 1: no memory_gib", "devices 1: no memory_gb_per_s",
                          "links 0: no gb_per_s", "hosts 0: no device"));
}

TEST(Cluster, IsRefusedWithAllProblemsInOneMessage) {
  Cluster cluster = small_cluster();
  cluster.devices[0].memory_gb_per_s = 0;
  cluster.hosts[0].device = "fats";
  EXPECT_THAT(test::message_of<UsageError>([&] { check_cluster(cluster); }),
              AllOf(HasSubstr("cluster 'small'"), HasSubstr("device fast: no memory_gb_per_s; "),
                    HasSubstr("hosts 0: device 'fats' is not described"),
                    HasSubstr("docs/formats/cluster.md")));
}

TEST(Cluster, NamesEveryImpossibleFigure) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  struct Case {
    std::string problem;
    std::function<void(Cluster&)> damage;
  };
  const std::vector<Case> cases = {
      {"device fast: two devices have this name",
       [](Cluster& c) { c.devices.push_back(c.devices[0]); }},
      {"device fast: teraflops.float32 is -1, expected a finite number of 0 or more",
       [](Cluster& c) { c.devices[0].teraflops.float32 = -1; }},
      {"device fast: teraflops.float8 is nan, expected a finite number of 0 or more",
       [&](Cluster& c) { c.devices[0].teraflops.float8 = nan; }},
      {"device fast: memory_gib is -16, expected a finite number above 0",
       [](Cluster& c) { c.devices[0].memory_gib = -16; }},
      {"device fast: memory_gb_per_s is inf, expected a finite number above 0",
       [&](Cluster& c) { c.devices[0].memory_gb_per_s = infinity; }},
      {"device fast: kernel_us is -1, expected a finite number of 0 or more",
       [](Cluster& c) { c.devices[0].kernel_us = -1; }},
      {"device fast: attention_share is 0, expected a share above 0 and at most 1",
       [](Cluster& c) { c.devices[0].attention_share = 0; }},
      {"device fast: efficiency.product is 75, expected a share above 0 and at most 1",
       [](Cluster& c) { c.devices[0].efficiency.product = 75; }},
      {"device fast: efficiency.half_product_gigaflops is -1, expected a finite number of 0 or "
       "more",
       [](Cluster& c) { c.devices[0].efficiency.half_product_gigaflops = -1; }},
      {"device fast: efficiency.memory is nan, expected a share above 0 and at most 1",
       [&](Cluster& c) { c.devices[0].efficiency.memory = nan; }},
      {"device fast: efficiency.link is 1.1, expected a share above 0 and at most 1",
       [](Cluster& c) { c.devices[0].efficiency.link = 1.1; }},
      {"links 1: gb_per_s is -10, expected a finite number above 0",
       [](Cluster& c) { c.links[1].gb_per_s = -10; }},
      {"links 0: latency_us is inf, expected a finite number of 0 or more",
       [&](Cluster& c) { c.links[0].latency_us = infinity; }},
      {"links 0: shared_by is 0, expected 1 to 1000000",
       [](Cluster& c) { c.links[0].shared_by = 0; }},
      {"links 0: compute_share is 1, expected a share from 0 to below 1",
       [](Cluster& c) { c.links[0].compute_share = 1; }},
      {"links 0: hosts is -1, expected 0 to 100000000", [](Cluster& c) { c.links[0].hosts = -1; }},
      {"links 1: no hosts: a pod needs their number",
       [](Cluster& c) { c.links[1].level = LinkLevel::kPod; }},
      {"links 1: levels go from host to pod to cluster, each at most once",
       [](Cluster& c) {
         c.links[0].level = LinkLevel::kCluster;
         c.links[1].level = LinkLevel::kPod;
         c.links[1].hosts = 2;
       }},
      {"links 2: levels go from host to pod to cluster, each at most once",
       [](Cluster& c) { c.links.push_back(c.links[1]); }},
      {"several devices, and no links", [](Cluster& c) { c.links.clear(); }},
      {"several hosts, and no links between them", [](Cluster& c) { c.links.pop_back(); }},
      {"2 hosts in pods of 1, and no links between pods",
       [](Cluster& c) {
         c.links[1].level = LinkLevel::kPod;
         c.links[1].hosts = 1;
       }},
      {"hosts 0: count is -1, expected 0 to 100000000", [](Cluster& c) { c.hosts[0].count = -1; }},
      {"hosts 0: count is 0, which only the last entry may have",
       [](Cluster& c) {
         c.hosts.push_back(c.hosts[0]);
         c.hosts[0].count = 0;
       }},
      {"hosts 0: devices is 0, expected 1 to 1000000", [](Cluster& c) { c.hosts[0].devices = 0; }},
      {"hosts 0: device 'Fast' is not described", [](Cluster& c) { c.hosts[0].device = "Fast"; }},
      {"hosts 0: memory_gib is -1, expected a finite number of 0 or more",
       [](Cluster& c) { c.hosts[0].memory_gib = -1; }},
      {"hosts 0: disk_gb_per_s is -1, expected a finite number of 0 or more",
       [](Cluster& c) { c.hosts[0].disk_gb_per_s = -1; }},
      {"hosts 0: failure_hours is nan, expected a finite number of 0 or more",
       [&](Cluster& c) { c.hosts[0].failure_hours = nan; }},
  };
  for (const auto& [problem, damage] : cases) {
    Cluster cluster = small_cluster();
    damage(cluster);
    EXPECT_THAT(problems_of(cluster), ElementsAre(problem));
  }
}

TEST(Cluster, OfOneDeviceNeedsNoLinks) {
  Cluster cluster = small_cluster();
  cluster.hosts = {{.count = 1, .devices = 1, .device = "fast"}};
  cluster.links.clear();
  EXPECT_THAT(problems_of(cluster), IsEmpty());
}

TEST(Cluster, OfAsManyHostsAsNeededIsCheckedOnceTheyAreKnown) {
  Cluster cluster = small_cluster();
  cluster.hosts[0].count = 0;
  cluster.links.pop_back();
  EXPECT_THAT(problems_of(cluster), IsEmpty());
  EXPECT_THAT(problems_of(cluster.with_ranks(4)), IsEmpty());
  EXPECT_THAT(problems_of(cluster.with_ranks(5)),
              ElementsAre("several hosts, and no links between them"));
}

TEST(Cluster, NeedsLinksBetweenItsPodsOnly) {
  Cluster cluster = small_cluster();
  cluster.links[1] = {.level = LinkLevel::kPod, .gb_per_s = 10, .hosts = 2};
  EXPECT_THAT(problems_of(cluster), IsEmpty());
  cluster.hosts[0].count = 3;
  EXPECT_THAT(problems_of(cluster), ElementsAre("3 hosts in pods of 2, and no links between pods"));
}

TEST(Cluster, NamesCurvesThatCannotBeUsed) {
  const MeasuredOperator product = {.device = "fast",
                                    .name = "aten::mm",
                                    .dtype = "float32",
                                    .curve = {.sizes = {1, 2}, .microseconds = {3, 4}}};
  const auto problems_with = [&](auto damage) {
    Cluster cluster = small_cluster();
    cluster.operators = {product};
    damage(cluster.operators[0]);
    return problems_of(cluster);
  };
  EXPECT_THAT(problems_with([](MeasuredOperator&) {}), IsEmpty());
  const auto with_curve = [&](const Curve& curve) {
    return problems_with([&](MeasuredOperator& measured) { measured.curve = curve; });
  };
  const auto is_refused = ElementsAre(
      "operator aten::mm of fast in float32: expected sizes in ascending order and as many "
      "microseconds, all above 0");
  EXPECT_THAT(with_curve({}), is_refused);
  EXPECT_THAT(with_curve({.sizes = {1, 2}, .microseconds = {3}}), is_refused);
  EXPECT_THAT(with_curve({.sizes = {2, 1}, .microseconds = {3, 4}}), is_refused);
  EXPECT_THAT(with_curve({.sizes = {2, 2}, .microseconds = {3, 4}}), is_refused);
  EXPECT_THAT(with_curve({.sizes = {0, 1}, .microseconds = {3, 4}}), is_refused);
  EXPECT_THAT(with_curve({.sizes = {1, 2}, .microseconds = {3, std::nan("")}}), is_refused);
  EXPECT_THAT(problems_with([](MeasuredOperator& m) { m.device = "slow"; }),
              ElementsAre("operator aten::mm of slow in float32: this device is not described"));
  EXPECT_THAT(
      problems_with([](MeasuredOperator& m) { m.dtype = "fp32"; }),
      ElementsAre(HasSubstr("operator aten::mm of fast in fp32: expected float64, float32")));
}

TEST(Cluster, NamesMeasuredCollectivesAndOptimizersThatDoNotExist) {
  const Curve curve = {.sizes = {1, 2}, .microseconds = {3, 4}};
  Cluster cluster = small_cluster();
  cluster.collectives = {{.name = "all_reduce", .ranks = 4, .curve = curve},
                         {.name = "allreduce", .ranks = 4, .curve = curve},
                         {.name = "message", .ranks = 1, .curve = curve}};
  cluster.optimizers = {{.device = "fast", .name = "sgd", .curve = curve},
                        {.device = "fast", .name = "lion", .curve = curve},
                        {.device = "slow", .name = "adam", .curve = curve}};
  EXPECT_THAT(problems_of(cluster),
              ElementsAre(HasSubstr("collective allreduce of 4 ranks: expected all_reduce"),
                          "collective message of 1 ranks: ranks is 1, expected 2 to 1000000",
                          "optimizer lion of fast: expected sgd, momentum or adam",
                          "optimizer adam of slow: this device is not described"));
}

TEST(Cluster, HasTheDevicesOfItsRanks) {
  const Cluster used = small_cluster().with_ranks(6);
  EXPECT_EQ(used.num_devices(), 6);
  ASSERT_EQ(used.hosts.size(), 2);
  EXPECT_EQ(used.hosts[0].count, 1);
  EXPECT_EQ(used.hosts[0].devices, 4);
  EXPECT_EQ(used.hosts[1].count, 1);
  EXPECT_EQ(used.hosts[1].devices, 2);
  EXPECT_THAT(problems_of(used), IsEmpty());
}

TEST(Cluster, WithFewerRanksThanAHostHasOneHostWithFewerDevices) {
  const Cluster used = small_cluster().with_ranks(3);
  ASSERT_EQ(used.hosts.size(), 1);
  EXPECT_EQ(used.hosts[0].count, 1);
  EXPECT_EQ(used.hosts[0].devices, 3);
}

TEST(Cluster, WithAllItsRanksStaysAsItIs) {
  EXPECT_EQ(small_cluster().with_ranks(8), small_cluster());
}

TEST(Cluster, FillsItsEntriesInOrder) {
  Cluster cluster = small_cluster();
  cluster.hosts.push_back({.count = 0, .devices = 8, .device = "fast", .memory_gib = 512});
  const Cluster used = cluster.with_ranks(8 + 2 * 8 + 5);
  ASSERT_EQ(used.hosts.size(), 3);
  EXPECT_EQ(used.hosts[0], cluster.hosts[0]);
  EXPECT_EQ(used.hosts[1].count, 2);
  EXPECT_EQ(used.hosts[1].devices, 8);
  EXPECT_EQ(used.hosts[2].count, 1);
  EXPECT_EQ(used.hosts[2].devices, 5);
  EXPECT_EQ(used.hosts[2].memory_gib, 512);
}

TEST(Cluster, GrowsToAsManyHostsAsNeeded) {
  Cluster cluster = small_cluster();
  cluster.hosts[0].count = 0;
  EXPECT_EQ(cluster.with_ranks(4096).num_devices(), 4096);
  EXPECT_EQ(cluster.with_ranks(4096).hosts.size(), 1);
  EXPECT_THAT(test::message_of<UsageError>([&] { (void)cluster.num_devices(); }),
              HasSubstr("has as many hosts as needed (count = 0)"));
}

TEST(Cluster, RefusesMoreRanksThanDevices) {
  EXPECT_THAT(test::message_of<UsageError>([] { (void)small_cluster().with_ranks(9); }),
              HasSubstr("has 8 devices, and 9 ranks need one each"));
  EXPECT_THAT(test::message_of<UsageError>([] { (void)small_cluster().with_ranks(0); }),
              HasSubstr("a cluster for 0 ranks"));
}

TEST(Cluster, RefusesRanksOnHostsThatCannotExist) {
  Cluster cluster = small_cluster();
  cluster.hosts[0].devices = 0;  // was a division by zero
  EXPECT_THAT(test::message_of<UsageError>([&] { (void)cluster.with_ranks(2); }),
              HasSubstr("has 2 hosts of 0 devices"));
  cluster.hosts[0] = {.count = -1, .devices = 4, .device = "fast"};
  EXPECT_THAT(test::message_of<UsageError>([&] { (void)cluster.with_ranks(2); }),
              HasSubstr("has -1 hosts of 4 devices"));
}

TEST(Cluster, WithMoreDevicesThanANumberHoldsIsCutWithoutOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Cluster cluster = small_cluster();
  cluster.hosts[0].count = kMost;
  EXPECT_EQ(cluster.with_ranks(10).num_devices(), 10);
  cluster.hosts[0].devices = kMost;
  EXPECT_EQ(cluster.with_ranks(10).num_devices(), 10);
  EXPECT_THAT(problems_of(cluster), Contains(HasSubstr("expected 0 to 100000000")));
}

TEST(Cluster, FindsAKindByItsName) {
  const Cluster cluster = small_cluster();
  EXPECT_EQ(&cluster.device("fast"), &cluster.devices[0]);
  EXPECT_THAT(test::message_of<UsageError>([&] { (void)cluster.device("slow"); }),
              AllOf(HasSubstr("has no device 'slow'"), HasSubstr("its devices are fast")));
  EXPECT_THAT(test::message_of<UsageError>([] { (void)Cluster{}.device("slow"); }),
              HasSubstr("describe one: [[devices]]"));
}

TEST(Cluster, WarnsOfGigabitsEnteredAsGigabytes) {
  Cluster cluster = small_cluster();
  EXPECT_THAT(implausible_figures(cluster), IsEmpty());
  for (const auto& [entered, meant] :
       {std::pair(200, "25"), std::pair(400, "50"), std::pair(800, "100")}) {
    cluster.links[1].gb_per_s = entered;
    EXPECT_THAT(implausible_figures(cluster),
                ElementsAre(AllOf(HasSubstr("cluster small, links between hosts: gb_per_s = "),
                                  HasSubstr(join_message(entered, " Gbit/s are ", meant)))));
  }
  cluster.links[1].gb_per_s = 100;  // a port of 800 Gbit/s
  EXPECT_THAT(implausible_figures(cluster), IsEmpty());
}

TEST(Cluster, MayHaveFastLinksInPods) {
  Cluster cluster = small_cluster();
  cluster.links[1] = {.level = LinkLevel::kPod, .gb_per_s = 900, .hosts = 18};
  EXPECT_THAT(implausible_figures(cluster), IsEmpty());
  cluster.links[1].gb_per_s = 7200;
  EXPECT_THAT(implausible_figures(cluster),
              ElementsAre(HasSubstr("links of pods: gb_per_s = 7200")));
}

TEST(Cluster, WarnsOfTerabytesEnteredAsGigabytes) {
  Cluster cluster = small_cluster();
  cluster.devices[0].teraflops = {.float32 = 67, .bfloat16 = 989};
  cluster.devices[0].memory_gb_per_s = 3.35;
  EXPECT_THAT(implausible_figures(cluster), ElementsAre(HasSubstr("3.35 TB/s are 3350")));
}

TEST(Cluster, WarnsOfEveryOtherUnit) {
  Cluster cluster = small_cluster();
  cluster.devices[0].teraflops.float16 = 312'000;
  cluster.devices[0].memory_gib = 81'920;
  cluster.devices[0].memory_gb_per_s = 2'039'000;
  cluster.devices[0].kernel_us = 3'500;
  cluster.hosts[0].memory_gib = 1'048'576;
  cluster.links[0].gb_per_s = 2'400;
  cluster.links[0].latency_us = 6'000;
  EXPECT_THAT(
      implausible_figures(cluster),
      ElementsAre(HasSubstr("device fast: teraflops.float16"), HasSubstr("device fast: memory_gib"),
                  HasSubstr("device fast: memory_gb_per_s"), HasSubstr("device fast: kernel_us"),
                  HasSubstr("hosts 0: memory_gib"), HasSubstr("links inside of hosts: gb_per_s"),
                  HasSubstr("links inside of hosts: latency_us")));
}

}  // namespace
}  // namespace trireme::cluster

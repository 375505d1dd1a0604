// SPDX-License-Identifier: Apache-2.0
// Pipelines over devices of several kinds.
#include <trireme/search/uneven_stages.h>

#include "tests/unit/search/small_training.h"
#include <trireme/cluster/cluster_file.h>
#include <trireme/search/search.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace trireme::search {
namespace {

using testing::HasSubstr;

// Calls `visit` with all ascending boundaries from `begin` to the number of parts.
template <class Visit>
void for_all_divisions(std::vector<std::size_t>& boundaries, std::size_t num_stages,
                       std::size_t num_parts, const Visit& visit) {
  if (boundaries.size() == num_stages) {
    boundaries.push_back(num_parts);
    visit(boundaries);
    boundaries.pop_back();
    return;
  }
  for (std::size_t next = boundaries.back() + 1; next < num_parts; ++next) {
    boundaries.push_back(next);
    for_all_divisions(boundaries, num_stages, num_parts, visit);
    boundaries.pop_back();
  }
}

double sum_of(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
}

// The time of the slowest stage; infinite if a stage is too large.
double slowest_of(const StageCosts& costs, const std::vector<std::size_t>& boundaries) {
  double slowest = 0;
  for (std::size_t stage = 0; stage + 1 < boundaries.size(); ++stage) {
    const std::size_t begin = boundaries[stage];
    const std::size_t end = boundaries[stage + 1];
    if (sum_of(costs.bytes[stage], begin, end) > costs.limits[stage]) {
      return std::numeric_limits<double>::infinity();
    }
    slowest = std::max(slowest, sum_of(costs.seconds[stage], begin, end));
  }
  return slowest;
}

TEST(DivideByCosts, FindsTheBestOfAllDivisions) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same cases each time
  std::uniform_int_distribution<int> whole(1, 8);
  int num_divisible = 0;
  for (int round = 0; round < 200; ++round) {
    const auto num_stages = static_cast<std::size_t>(2 + round % 3);
    const std::size_t num_parts = num_stages + static_cast<std::size_t>(whole(random));
    StageCosts costs;
    for (std::size_t stage = 0; stage < num_stages; ++stage) {
      const double speed = whole(random);
      costs.limits.push_back(whole(random) * 3);
      costs.seconds.emplace_back();
      costs.bytes.emplace_back();
      for (std::size_t part = 0; part < num_parts; ++part) {
        costs.seconds.back().push_back(whole(random) / speed);
        costs.bytes.back().push_back(whole(random));
      }
    }
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> boundaries = {0};
    for_all_divisions(boundaries, num_stages, num_parts,
                      [&](const auto& all) { best = std::min(best, slowest_of(costs, all)); });
    const std::vector<std::size_t> found = divide_by_costs(costs);
    if (best == std::numeric_limits<double>::infinity()) {
      EXPECT_TRUE(found.empty());
      continue;
    }
    ++num_divisible;
    ASSERT_EQ(found.size(), num_stages + 1);
    EXPECT_NEAR(slowest_of(costs, found), best, 1e-12);
  }
  EXPECT_GT(num_divisible, 20);
  EXPECT_LT(num_divisible, 200);
}

// Hosts of A100, and behind them hosts of a slower kind.
cluster::Cluster two_kinds(std::int64_t fast, std::int64_t slow, const char* slow_kind) {
  cluster::Cluster cluster = cluster::read_cluster("a100-80");
  const cluster::Cluster other = cluster::read_cluster(slow_kind);
  cluster.devices.push_back(other.devices.front());
  cluster.hosts.front().count = 1;
  cluster.hosts.front().devices = fast;
  cluster.hosts.push_back(cluster.hosts.front());
  cluster.hosts.back().device = other.devices.front().name;
  cluster.hosts.back().devices = slow;
  cluster.name = "A100 and " + cluster.hosts.back().device;
  return cluster;
}

Constraints constraints_of(const std::vector<std::string>& texts) {
  Constraints constraints;
  for (const std::string& text : texts) add_constraint(constraints, text);
  return constraints;
}

TEST(UnevenStages, AreFasterThanEvenOnesAndTheBestOfAllCuts) {
  SmallGpt gpt(8, 4096);
  const Training training = gpt.training(64);
  const cluster::Cluster cluster = two_kinds(4, 4, "v100-32");
  const SearchResult result =
      find_plan(training, 8, cluster,
                constraints_of({"pipe=2", "data=4", "schedule=1f1b", "micro_batches=8",
                                "zero_level=0", "recompute=none"}));
  const Candidate& found = result.fastest();
  ASSERT_EQ(found.plan.stages.size(), 1U);

  RecordTable records(training, 8, cluster);
  const ModuleRecord& record = records.exact_record({}, found.rows);
  const auto seconds_with = [&](const Stages& stages) {
    Plan plan = found.plan;
    plan.stages = stages;
    return predict::predict(record, plan, cluster, training.options).step_seconds;
  };
  double best = std::numeric_limits<double>::infinity();
  for (int block = 1; block < 8; ++block) {
    best = std::min(best, seconds_with({{"blocks." + std::to_string(block), 1}}));
  }
  EXPECT_DOUBLE_EQ(found.prediction.step_seconds, best);
  // In fp32 a V100 is a fifth slower than an A100.
  EXPECT_LT(found.prediction.step_seconds, 0.98 * seconds_with({}));
  EXPECT_LE(result.lower_bound, best);
}

TEST(UnevenStages, OfThreeRanksAreTheBestOfAllCuts) {
  SmallGpt gpt(8, 4096);
  const Training training = gpt.training(36);
  cluster::Cluster cluster = two_kinds(2, 1, "v100-32");
  const SearchResult result =
      find_plan(training, 3, cluster,
                constraints_of({"pipe=3", "schedule=1f1b", "micro_batches=12", "recompute=none"}));
  const Candidate& found = result.fastest();
  RecordTable records(training, 3, cluster);
  const ModuleRecord& record = records.exact_record({}, found.rows);
  double best = std::numeric_limits<double>::infinity();
  for (int first = 1; first < 8; ++first) {
    for (int second = first + 1; second < 8; ++second) {
      Plan plan = found.plan;
      plan.stages = {{"blocks." + std::to_string(first), 1},
                     {"blocks." + std::to_string(second), 2}};
      const auto prediction = predict::predict(record, plan, cluster, training.options);
      best = std::min(best, prediction.step_seconds);
    }
  }
  // Also cuts within a block, which are even, are tried.
  EXPECT_LE(found.prediction.step_seconds, best * (1 + 1e-9));
}

// A stage on a device with less memory gets fewer modules, where the even division does not fit.
TEST(UnevenStages, FitIntoDevicesOfDifferentMemory) {
  SmallGpt gpt(8, 4096);
  const Training training = gpt.training(8);
  cluster::Cluster cluster = two_kinds(1, 1, "v100-32");
  // Parameters, gradients and Adam's state of eight blocks are 24 GiB.
  cluster.devices.back().memory_gib = 8;
  const SearchResult result = find_plan(
      training, 2, cluster, constraints_of({"pipe=2", "schedule=1f1b", "recompute=none"}));
  const Candidate& found = result.fastest();
  ASSERT_EQ(found.devices.size(), 2U);
  EXPECT_GT(found.prediction.memory[0].total(), found.devices[1].memory_limit);
  EXPECT_LE(found.prediction.memory[1].total(), found.devices[1].memory_limit);
  EXPECT_THAT(to_string(result), HasSubstr("devices of several kinds; stages begin at blocks."));
  EXPECT_THAT(to_string(result), HasSubstr(cluster.devices.back().name));
}

TEST(UnevenStages, AreNotUsedForOneKindOfDevice) {
  SmallGpt gpt(8, 4096);
  const SearchResult result =
      find_plan(gpt.training(64), 8, cluster::read_cluster("a100-80"), constraints_of({"pipe=2"}));
  for (const Candidate& candidate : result.best) {
    EXPECT_TRUE(candidate.plan.stages.empty());
    EXPECT_TRUE(candidate.devices.empty());
  }
}

TEST(DevicesOfStages, AreTheSlowestAndTheSmallest) {
  const cluster::Cluster cluster = two_kinds(4, 4, "v100-16").with_ranks(8);
  Plan plan = {.mesh = {{"pipe", 2}, {"data", 4}}};
  const auto outer = devices_of_stages(plan, cluster);
  ASSERT_EQ(outer.size(), 2U);
  EXPECT_EQ(outer[0].slowest, "A100-80");
  EXPECT_EQ(outer[1].slowest, "V100-16");
  EXPECT_GT(outer[0].memory_bytes, outer[1].memory_bytes);
  plan.mesh = {{"data", 4}, {"pipe", 2}};
  const auto inner = devices_of_stages(plan, cluster);
  EXPECT_EQ(inner[0], inner[1]);
  EXPECT_EQ(inner[0].slowest, "V100-16");
}

}  // namespace
}  // namespace trireme::search

// SPDX-License-Identifier: Apache-2.0
// Layouts along `tensor`: replays against dry runs, and what the search finds.
#include "tests/unit/search/small_training.h"
#include <trireme/cluster/cluster_file.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/search/layouts/layout_replay.h>
#include <trireme/search/layouts/layout_search.h>
#include <trireme/search/training/training.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace trireme::search {
namespace {

constexpr std::int64_t kRanks = 4;

// A module laid out over `tensor` ranks, with a dry run of it.
struct LaidOut {
  LaidOutModule module;
  detail::ModuleDryRun dry_run;
  ModuleRecord record;
};

LaidOut dry_run_of(const Training& training, const cluster::Cluster& cluster,
                   const ParameterLayouts& layouts, std::int64_t rows) {
  Plan plan;
  plan.mesh = {{"data", 2}, {"tensor", kRanks}};
  plan.layouts = layouts;
  LaidOut all;
  all.module = lay_out_module(training.module, plan, &cluster);
  all.dry_run = detail::dry_run_module(all.module.tensors, all.module.layouts,
                                       loss_of_rows(training, rows), 0);
  all.record = make_record(all.module, all.dry_run);
  return all;
}

std::vector<double> whole_seconds(const ModuleRecord& record, const cluster::DeviceKind& device) {
  std::vector<double> seconds;
  for (const OperatorCall& call : record.calls) {
    const bool works = call.work.flops > 0 || call.work.bytes > 0;
    seconds.push_back(works ? cluster::seconds(device, call.work) : 0);
  }
  return seconds;
}

std::vector<Placement> placements_of(const LaidOutModule& module) {
  std::vector<Placement> placements;
  for (const Layout& layout : module.layouts) placements.push_back(layout[0]);
  return placements;
}

class LayoutReplayOf : public testing::TestWithParam<ParameterLayouts> {};

// Every result has the layout that it has in a dry run with these layouts of parameters.
TEST_P(LayoutReplayOf, FollowsLayoutsAsADryRun) {
  SmallGpt gpt(2, 1024);
  const Training training = gpt.training(64);
  const cluster::Cluster cluster = cluster::read_cluster("a100-80").with_ranks(8);
  const cluster::DeviceKind& device = cluster.devices.front();
  for (const std::int64_t rows : {1, 8}) {
    const LaidOut whole = dry_run_of(training, cluster, {{"*", {{"tensor", Replicate{}}}}}, rows);
    const LaidOut sharded = dry_run_of(training, cluster, GetParam(), rows);
    LayoutReplay replay(whole.dry_run, whole.dry_run.along_axis, whole.module, 0,
                        whole_seconds(whole.record, device),
                        std::vector<double>(whole.module.tensors.size(), 0));
    EXPECT_GT(replay.seconds(placements_of(sharded.module)), 0);
    ASSERT_EQ(whole.dry_run.calls.size(), sharded.dry_run.calls.size());
    for (std::size_t i = 0; i < whole.dry_run.calls.size(); ++i) {
      const auto& call = sharded.dry_run.calls[i];
      ASSERT_EQ(call.name, whole.dry_run.calls[i].name);
      const std::vector<Placement> results = replay.results_of(i);
      if (results.size() != call.outputs.size()) continue;  // they are arguments
      for (std::size_t j = 0; j < results.size(); ++j) {
        const Placement expected = call.outputs[j].layout[0];
        EXPECT_TRUE(results[j].kind() == expected.kind() && results[j].dim() == expected.dim())
            << i << " " << call.name << ": " << results[j].to_string() << ", expected "
            << expected.to_string();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Search, LayoutReplayOf,
    testing::Values(SmallGpt().training(1).tensor_layouts,
                    ParameterLayouts{{"*.mlp_input.weight", {{"tensor", Shard{0}}}}},
                    ParameterLayouts{{"*.mlp_input.weight", {{"tensor", Shard{1}}}},
                                     {"*.attention.output.*", {{"tensor", Shard{0}}}}},
                    ParameterLayouts{{"*norm*", {{"tensor", Shard{0}}}},
                                     {"head*", {{"tensor", Shard{0}}}}},
                    ParameterLayouts{{"*", {{"tensor", Shard{0}}}}}));

TEST(LayoutReplay, OfReplicatedParametersIsTheWholeWork) {
  SmallGpt gpt(2);
  const Training training = gpt.training(64);
  const cluster::Cluster cluster = cluster::read_cluster("a100-80").with_ranks(8);
  const LaidOut whole = dry_run_of(training, cluster, {{"*", {{"tensor", Replicate{}}}}}, 4);
  const std::vector<double> seconds = whole_seconds(whole.record, cluster.devices.front());
  LayoutReplay replay(whole.dry_run, whole.dry_run.along_axis, whole.module, 0, seconds,
                      std::vector<double>(whole.module.tensors.size(), 1));
  const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0) +
                     static_cast<double>(whole.module.tensors.size());
  EXPECT_NEAR(replay.seconds(std::vector<Placement>(whole.module.tensors.size())), all,
              1e-12 * all);
}

const ParameterLayout& layout_of(const FoundLayouts& found, const std::string& name) {
  static const ParameterLayout none;
  const ParameterLayout* const layout = find_layout(found.layouts, name);
  return layout == nullptr ? none : *layout;
}

TEST(FindLayouts, FindsColumnsAndThenRowsInATransformer) {
  SmallGpt gpt(2, 1024);
  const Training training = gpt.training(64);
  const cluster::Cluster cluster = cluster::read_cluster("a100-80").with_ranks(8);
  const FoundLayouts found =
      find_layouts(training, cluster, 8, kRanks, 16, repeated_modules(training.module));
  const AxisPlacements columns = {"tensor", Shard{0}};
  const AxisPlacements rows = {"tensor", Shard{1}};
  EXPECT_EQ(layout_of(found, "blocks.1.mlp_input.weight").placements, columns);
  EXPECT_EQ(layout_of(found, "blocks.1.mlp_output.weight").placements, rows);
  EXPECT_EQ(layout_of(found, "blocks.0.attention.input.weight").placements, columns);
  EXPECT_EQ(layout_of(found, "blocks.0.attention.output.weight").placements, rows);
  EXPECT_LT(found.seconds, 0.7 * found.replicated_seconds);
}

TEST(FindLayouts, AreNoSlowerThanMegatrons) {
  SmallGpt gpt(2, 1024);
  const Training training = gpt.training(64);
  const cluster::Cluster cluster = cluster::read_cluster("a100-80").with_ranks(8);
  const FoundLayouts found =
      find_layouts(training, cluster, 8, kRanks, 16, repeated_modules(training.module));
  const auto seconds_with = [&](const ParameterLayouts& layouts) {
    const Plan plan = {.mesh = {{"data", 2}, {"tensor", kRanks}}, .layouts = layouts};
    return predict::predict(dry_run_of(training, cluster, layouts, 16).record, plan, cluster)
        .step_seconds;
  };
  EXPECT_LT(seconds_with(found.layouts), 1.03 * seconds_with(training.tensor_layouts));
}

TEST(FindLayouts, LeaveParametersWholeBehindSlowLinks) {
  SmallGpt gpt(2);
  const Training training = gpt.training(64);
  cluster::Cluster cluster = cluster::read_cluster("a100-80").with_ranks(8);
  for (cluster::Links& links : cluster.links) links.latency_us = 1e6;
  const FoundLayouts found =
      find_layouts(training, cluster, 8, kRanks, 1, repeated_modules(training.module));
  EXPECT_TRUE(found.layouts.empty()) << to_string(found.layouts);
}

TEST(ParameterGroups, FoldRepeatedModules) {
  SmallGpt gpt(3);
  const Training training = gpt.training(1);
  const auto groups = parameter_groups(training.module, repeated_modules(training.module));
  EXPECT_EQ(groups.size(), 17U);
  const auto found = std::ranges::find_if(groups, [](const ParameterGroup& group) {
    return group.names.front() == "blocks.0.mlp_input.weight";
  });
  ASSERT_NE(found, groups.end());
  EXPECT_THAT(found->names,
              testing::ElementsAre("blocks.0.mlp_input.weight", "blocks.1.mlp_input.weight",
                                   "blocks.2.mlp_input.weight"));
  EXPECT_THAT(found->patterns, testing::ElementsAre("blocks.*.mlp_input.weight"));
}

}  // namespace
}  // namespace trireme::search

// SPDX-License-Identifier: Apache-2.0
// That paths are chosen by the links of the mesh, and that a mesh has one set of links only.
#include <trireme/tensor/axis_links.h>

#include <trireme/base/error.h>
#include <trireme/tensor/redistribution/path.h>
#include <trireme/tensor/redistribution/redistribution.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr Link kFast = {.latency = 2e-6, .bytes_per_second = 1e12};
constexpr Link kSlow = {.latency = 2e-6, .bytes_per_second = 1e8};
constexpr Link kFar = {.latency = 0.1, .bytes_per_second = 1e8};  // slow, and of a long latency

cluster::CollectiveLinks alike(const Link& link) {
  cluster::CollectiveLinks links;
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kBroadcast}) {
    links.set(kind, link);
  }
  return links;
}

DeviceMesh two_by_two() { return DeviceMesh::unconnected({{"a", 2}, {"b", 2}}); }

DeviceMesh two_by_two(const Link& along_a, const Link& along_b) {
  DeviceMesh mesh = two_by_two();
  set_axis_links(mesh, {alike(along_a), alike(along_b)});
  return mesh;
}

// What is done on the way, such as `a all-gather`.
std::vector<std::string> steps_of(const DeviceMesh& mesh, const std::vector<Placement>& from,
                                  const std::vector<Placement>& to, std::int64_t rows) {
  std::vector<std::string> all;
  const Redistribution path({rows, rows}, at::kFloat, Layout(mesh, from), Layout(mesh, to));
  for (const RedistributionStep& step : path.steps()) {
    all.push_back(mesh.axis_name(step.axis) + " " + tensor::to_string(step.kind));
  }
  return all;
}

const std::vector<Placement> kSums = {Partial{}, Partial{}};
const std::vector<Placement> kWhole = {Replicate{}, Replicate{}};

TEST(AxisLinks, AreTheDefaultUntilTheyAreSet) {
  const DeviceMesh mesh = two_by_two();
  EXPECT_FALSE(has_axis_links(mesh));
  EXPECT_FALSE(has_axis_links(DeviceMesh()));
  EXPECT_EQ(link_along(*mesh.state(), 1, Collective::kAllReduce).latency, Link().latency);
  EXPECT_DOUBLE_EQ(seconds_along(*mesh.state(), 1, Collective::kAllReduce, 4096),
                   trireme::seconds(Collective::kAllReduce, 4096, 2));
  set_axis_links(mesh, {alike(kFast), alike(kSlow)});
  EXPECT_TRUE(has_axis_links(mesh));
  EXPECT_EQ(link_along(*mesh.state(), 0, Collective::kAllToAll).bytes_per_second, 1e12);
  EXPECT_DOUBLE_EQ(seconds_along(*mesh.state(), 1, Collective::kAllReduce, 4096),
                   trireme::seconds(Collective::kAllReduce, 4096, 2, kSlow));
}

TEST(AxisLinks, AreThoseOfTheEstimatedSeconds) {
  const DeviceMesh mesh = two_by_two(kSlow, kSlow);
  const double expected =
      kStepSeconds + kCallSeconds + trireme::seconds(Collective::kAllGather, 1 << 22, 2, kSlow);
  EXPECT_DOUBLE_EQ(
      redistribution_seconds({1024, 1024}, at::kFloat, Layout(mesh, {Replicate{}, Shard{0}}),
                             Layout::replicated(mesh)),
      expected);
}

// The axis whose link is slow sends as little as possible: the other one shards before it, and
// gathers after it.
TEST(AxisLinks, DecideWhichAxisReducesFirst) {
  EXPECT_THAT(steps_of(two_by_two(kFast, kSlow), kSums, kWhole, 1024),
              ElementsAre("a reduce-scatter", "b all-reduce", "a all-gather"));
  EXPECT_THAT(steps_of(two_by_two(kSlow, kFast), kSums, kWhole, 1024),
              ElementsAre("b reduce-scatter", "a all-reduce", "b all-gather"));
}

// Of 16 KiB, sending a quarter less is worth one more collective unless the link is very fast.
TEST(AxisLinks, DecideHowManyCollectivesAreWorthTheBytesThatTheySave) {
  EXPECT_EQ(steps_of(two_by_two(), kSums, kWhole, 64).size(), 3U);
  EXPECT_THAT(steps_of(two_by_two(kFast, kFast), kSums, kWhole, 64),
              testing::UnorderedElementsAre("a all-reduce", "b all-reduce"));
}

// To remove an outer level, all-to-alls send less than gathering the inner one. Each of them costs
// the latency once more.
TEST(AxisLinks, DecideBetweenLatencyAndBytes) {
  const std::vector<Placement> nested = {Shard{0}, Shard{0}};
  const std::vector<Placement> inner = {Replicate{}, Shard{0}};
  EXPECT_THAT(steps_of(two_by_two(kSlow, kSlow), nested, inner, 1024),
              ElementsAre("b all-to-all", "a all-gather", "b all-to-all"));
  EXPECT_THAT(steps_of(two_by_two(kFar, kFar), nested, inner, 1024),
              ElementsAre("b all-gather", "a all-gather", "b slice"));
}

TEST(AxisLinks, AreSetOnceForAMesh) {
  const DeviceMesh mesh = two_by_two(kFast, kSlow);
  EXPECT_NO_THROW(set_axis_links(mesh, {alike(kFast), alike(kSlow)}));
  const std::string message =
      message_of<UsageError>([&] { set_axis_links(mesh, {alike(kFast), alike(kFar)}); });
  EXPECT_THAT(message, StartsWith("mesh a=2, b=2 has links already, and was given others: an "
                                  "all-reduce along b had 2 us and 0.1 GB/s, and shall have "
                                  "100000 us and 0.1 GB/s"));
  EXPECT_THAT(message, HasSubstr("keep TRIREME_CLUSTER as it is in the whole run"));
  EXPECT_EQ(link_along(*mesh.state(), 1, Collective::kAllReduce).latency, kSlow.latency);
}

TEST(AxisLinks, OfAMeshInUseOutdateDecisions) {
  const DeviceMesh unused = two_by_two();
  const std::uint64_t before = axis_links_version();
  set_axis_links(unused, {alike(kFast), alike(kSlow)});
  EXPECT_EQ(axis_links_version(), before);
  const DeviceMesh used = two_by_two();
  const Layout layout = Layout::replicated(used);
  set_axis_links(used, {alike(kFast), alike(kSlow)});
  EXPECT_GT(axis_links_version(), before);
}

TEST(AxisLinks, AreRefusedIfTheyFitNoMesh) {
  const DeviceMesh mesh = two_by_two();
  EXPECT_THAT(message_of<UsageError>([&] { set_axis_links(mesh, {alike(kFast)}); }),
              HasSubstr("1 links for mesh a=2, b=2, which has 2 axes"));
  EXPECT_THAT(message_of<UsageError>([] { set_axis_links(DeviceMesh(), {}); }),
              HasSubstr("default DeviceMesh"));
  const Link none = {.latency = 1e-6, .bytes_per_second = 0};
  EXPECT_THAT(message_of<UsageError>([&] { set_axis_links(mesh, {alike(kFast), alike(none)}); }),
              HasSubstr("bandwidth must be above 0"));
  EXPECT_FALSE(has_axis_links(mesh));
}

}  // namespace
}  // namespace trireme::tensor

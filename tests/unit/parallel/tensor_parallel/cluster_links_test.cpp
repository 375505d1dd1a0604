// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/cluster_links.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/tensor/axis_links.h>

#include <gmock/gmock.h>
#include <tests/one_host.h>
#include <tests/temporary_folder.h>

namespace trireme::detail {
namespace {

using cluster::Cluster;
using test::ClusterInEnvironment;
using test::message_of;
using test::one_host;
using test::TemporaryFolder;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ClusterOfEnvironment, IsNoneByDefault) {
  EXPECT_FALSE(cluster_of_environment().has_value());
  const ClusterInEnvironment empty("");
  EXPECT_FALSE(cluster_of_environment().has_value());
}

TEST(ClusterOfEnvironment, IsTheOneThatTheVariableNames) {
  {
    const ClusterInEnvironment known("a100-80");
    EXPECT_EQ(cluster_of_environment(), cluster::read_cluster("a100-80"));
  }
  const TemporaryFolder folder;
  cluster::write_cluster(one_host(7), folder.path() / "host.toml");
  const ClusterInEnvironment file((folder.path() / "host.toml").string());
  EXPECT_EQ(cluster_of_environment(), one_host(7));
}

TEST(ClusterOfEnvironment, NamesTheVariableInErrors) {
  const ClusterInEnvironment wrong("a100-08");
  EXPECT_THAT(message_of<ConfigError>([] { static_cast<void>(cluster_of_environment()); }),
              AllOf(StartsWith("environment variable TRIREME_CLUSTER is 'a100-08': there is no "
                               "cluster 'a100-08'"),
                    HasSubstr("did you mean 'a100-80'?")));
}

TEST(LineOfCluster, DiffersForOtherFiguresOfTheSameName) {
  EXPECT_EQ(line_of(std::nullopt), "TRIREME_CLUSTER      not set\n");
  const std::string line = line_of(one_host(7));
  EXPECT_THAT(line, AllOf(StartsWith("TRIREME_CLUSTER      test, digest "), EndsWith("\n")));
  EXPECT_EQ(line_of(one_host(7)), line);
  EXPECT_NE(line_of(one_host(8)), line);
}

TEST(SetLinks, GivesEachAxisOfTheMeshTheLinksOfThePlan) {
  const Plan plan = {.mesh = {{"data", 2}, {"tensor", 2}}};
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  set_links(mesh, plan, one_host(50, 3));
  const Link& link = tensor::link_along(*mesh.state(), 0, Collective::kAllReduce);
  EXPECT_NEAR(link.latency, 3e-6, 1e-12);
  EXPECT_NEAR(link.bytes_per_second, 50e9, 1e3);
  EXPECT_NO_THROW(set_links(DeviceMesh(), plan, one_host(50)));
}

TEST(SetLinks, NeedsADeviceForEachRankAndTheLinksBetweenThem) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 8}});
  const auto error_of = [&](const Cluster& cluster) {
    return message_of<UsageError>([&] { set_links(mesh, {.mesh = {{"tensor", 8}}}, cluster); });
  };
  Cluster cluster = one_host(50);
  EXPECT_THAT(error_of(cluster),
              HasSubstr("cluster test has 4 devices, and 8 ranks need one each"));
  cluster.hosts[0].count = 0;  // as many as needed
  EXPECT_THAT(error_of(cluster), HasSubstr("several hosts, and no links between them"));
  cluster.links.clear();
  EXPECT_THAT(error_of(cluster), HasSubstr("several devices, and no links"));
  cluster = one_host(0);
  cluster.hosts[0].devices = 8;
  EXPECT_THAT(error_of(cluster), HasSubstr("links 0: no gb_per_s"));
  EXPECT_FALSE(tensor::has_axis_links(mesh));
}

}  // namespace
}  // namespace trireme::detail

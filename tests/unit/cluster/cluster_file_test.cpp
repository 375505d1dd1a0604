// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/cluster_file.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <fstream>
#include <string>

namespace trireme::cluster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(ClusterFile, KnownOnesAreWholeAndPlausible) {
  EXPECT_THAT(known_clusters(), testing::IsSupersetOf({"v100-16", "v100-32", "a100-40", "a100-80",
                                                       "h100-80", "h200", "cpu"}));
  for (const std::string& name : known_clusters()) {
    const Cluster cluster = read_cluster(name);
    EXPECT_THAT(implausible_figures(cluster), IsEmpty()) << name;
    EXPECT_FALSE(cluster.source.empty()) << name;
    EXPECT_EQ(cluster.with_ranks(1000).num_devices(), 1000) << name;
  }
}

TEST(ClusterFile, ReadsWhatItWrote) {
  const test::TemporaryFolder folder;
  Cluster cluster = read_cluster("h100-80");
  cluster.hosts[0].count = 7;
  cluster.hosts[0].failure_hours = 1000.5;
  cluster.products = {
      {.device = "H100-80", .dtype = "bfloat16", .gigaflops = {1, 10}, .teraflops = {200, 600}}};
  const std::string file = folder.path() / "mine.toml";
  write_cluster(cluster, file);
  EXPECT_EQ(read_cluster(file), cluster);
}

TEST(ClusterFile, SuggestsTheNameThatWasMeant) {
  try {
    (void)read_cluster("a100-08");
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no cluster 'a100-08'"));
    EXPECT_THAT(error.what(), HasSubstr("a100-80"));
  }
}

TEST(ClusterFile, NamesLineAndKeyOfWhatItDoesNotKnow) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "wrong.toml";
  std::ofstream(file) << "name = \"mine\"\n[[links]]\nlevel = \"hosts\"\ngb_per_s = 10\n";
  try {
    (void)read_cluster(file);
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wrong.toml:3"));
    EXPECT_THAT(error.what(), HasSubstr("level"));
  }
}

}  // namespace
}  // namespace trireme::cluster

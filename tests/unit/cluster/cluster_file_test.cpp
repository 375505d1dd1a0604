// SPDX-License-Identifier: Apache-2.0
// Descriptions as TOML: those that come with Trireme, what is written and read back, and the
// messages for everything that is wrong.
#include <trireme/cluster/cluster_file.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/known_clusters.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::string_view kSmall = R"(
name = "mine"

[[devices]]
name = "fast"
memory_gib = 16
memory_gb_per_s = 500
teraflops = { float32 = 10 }

[[hosts]]
count = 2
devices = 4
device = "fast"

[[links]]
gb_per_s = 100

[[links]]
level = "cluster"
gb_per_s = 10
)";

// Returns kSmall with one part replaced.
std::string with(std::string_view part, std::string_view other) {
  std::string text(kSmall);
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), other);
}

class ClusterFile : public testing::Test {
 protected:
  std::string file() const { return folder_.path() / "mine.toml"; }
  Cluster read(std::string_view text) const {
    test::write_file(file(), text);
    return read_cluster(file());
  }
  std::string message(std::string_view text) const {
    return test::message_of<ConfigError>([&] { (void)read(text); });
  }
  const test::TemporaryFolder& folder() const { return folder_; }

 private:
  test::TemporaryFolder folder_;
};

TEST(KnownClusters, AreWholeAndPlausible) {
  EXPECT_THAT(known_clusters(), testing::ElementsAre("a100-40", "a100-80", "cpu", "h100-80", "h200",
                                                     "v100-16", "v100-32"));
  for (const std::string& name : known_clusters()) {
    testing::internal::CaptureStderr();
    const Cluster cluster = read_cluster(name);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << name;
    EXPECT_FALSE(cluster.name.empty()) << name;
    EXPECT_FALSE(cluster.source.empty()) << name;
    EXPECT_EQ(cluster.with_ranks(1001).num_devices(), 1001) << name;
    EXPECT_THAT(problems_of(cluster.with_ranks(1001)), IsEmpty()) << name;
  }
}

TEST(KnownClusters, KeepTheirFiguresWhenWritten) {
  const test::TemporaryFolder folder;
  for (const std::string& name : known_clusters()) {
    const std::string file = folder.path() / name;
    write_cluster(read_cluster(name), file);
    EXPECT_EQ(read_cluster(file), read_cluster(name));
  }
}

TEST(KnownClusters, AreTheFilesOfTheirFolder) {
  const char* const source = std::getenv("TRIREME_SOURCE");
  if (source == nullptr) GTEST_SKIP() << "TRIREME_SOURCE is not set";
  for (const KnownCluster& known : known_cluster_texts()) {
    const auto file = std::filesystem::path(source) / "trireme/cluster/descriptions" /
                      (std::string(known.name) + ".toml");
    EXPECT_EQ(test::read_file(file), known.toml) << file;
  }
}

TEST(KnownClusters, HaveTheRatesOfTheirDataSheets) {
  // Per device and direction: 8 ports of 200 Gbit/s, 8 of 400, 4 of 100 for 8 devices.
  EXPECT_EQ(read_cluster("a100-80").links.back().gb_per_s, 200 / 8.0);
  EXPECT_EQ(read_cluster("h100-80").links.back().gb_per_s, 400 / 8.0);
  EXPECT_EQ(read_cluster("v100-16").links.back().gb_per_s, 100 / 8.0);
  EXPECT_EQ(read_cluster("v100-16").links.back().shared_by, 2);
  EXPECT_EQ(read_cluster("v100-32").hosts.back().devices, 16);
  EXPECT_EQ(read_cluster("v100-32").device("V100-32").teraflops.bfloat16, 0);
}

TEST_F(ClusterFile, HasDefaultsForFiguresThatMayBeLeftOut) {
  const Cluster cluster = read(kSmall);
  EXPECT_EQ(cluster.devices[0].efficiency, Efficiency());
  EXPECT_EQ(cluster.devices[0].kernel_us, 0);
  EXPECT_EQ(cluster.hosts[0].failure_hours, 0);
  EXPECT_EQ(cluster.links[0].level, LinkLevel::kHost);
  EXPECT_EQ(cluster.links[0].shared_by, 1);
  EXPECT_TRUE(cluster.links[0].is_full_duplex);
}

TEST_F(ClusterFile, ReadsWhatItWrote) {
  const Cluster cluster = {
      .name = "two \"kinds\"",
      .source = "measured",
      .devices =
          {{.name = "A",
            .teraflops = {.float64 = 0.1,
                          .float32 = 1.0 / 3,
                          .tf32 = 2,
                          .float16 = 3,
                          .bfloat16 = 4,
                          .float8 = 5},
            .memory_gib = 79.65,
            .memory_gb_per_s = 1e3,
            .kernel_us = 2.5,
            .attention_share = 0.5,
            .efficiency =
                {.product = 0.6, .half_product_gigaflops = 0.5, .memory = 0.7, .link = 0.8}},
           {.name = "B", .teraflops = {.float32 = 1}, .memory_gib = 8, .memory_gb_per_s = 9}},
      .hosts = {{.count = 3,
                 .devices = 8,
                 .device = "A",
                 .memory_gib = 512,
                 .disk_gb_per_s = 2.5,
                 .failure_hours = 1000.5},
                {.count = 0, .devices = 1, .device = "B"}},
      .links = {{.level = LinkLevel::kHost, .latency_us = 1.5, .gb_per_s = 300},
                {.level = LinkLevel::kPod, .gb_per_s = 50, .shared_by = 4, .hosts = 16},
                {.level = LinkLevel::kCluster,
                 .gb_per_s = 3.125,
                 .is_full_duplex = false,
                 .compute_share = 0.25}},
      .operators = {{.device = "A",
                     .name = "aten::mm",
                     .dtype = "bfloat16",
                     .curve = {.sizes = {1, 10.5}, .microseconds = {1.5, 3}}}},
      .collectives = {{.name = "all_reduce",
                       .ranks = 4,
                       .curve = {.sizes = {0.5}, .microseconds = {20}}}},
      .optimizers = {
          {.device = "A", .name = "adam", .curve = {.sizes = {0.5}, .microseconds = {20}}}}};
  ASSERT_THAT(problems_of(cluster), IsEmpty());
  write_cluster(cluster, file());
  EXPECT_EQ(read_cluster(file()), cluster);
}

TEST_F(ClusterFile, IsWrittenInSections) {
  EXPECT_THAT(to_toml(read(kSmall)),
              AllOf(HasSubstr("name = \"mine\"\n"), HasSubstr("\n[[devices]]\nname = \"fast\"\n"),
                    HasSubstr("\n[[links]]\nlevel = \"cluster\"\n"), HasSubstr("gb_per_s = 10.0\n"),
                    Not(HasSubstr("operators"))));
}

TEST_F(ClusterFile, RefusesToWriteWhatCouldNotBeRead) {
  Cluster cluster = read(kSmall);
  cluster.links[1].gb_per_s = std::numeric_limits<double>::infinity();
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)to_toml(cluster); }),
              HasSubstr("links[1].gb_per_s is inf, expected a number, above 0, finite"));
  cluster = read(kSmall);
  cluster.links[0].level = static_cast<LinkLevel>(7);
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)to_toml(cluster); }),
              HasSubstr("links[0].level is 7, expected one of \"host\", \"pod\", \"cluster\""));
  cluster = read(kSmall);
  cluster.name = "\xff";
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)to_toml(cluster); }),
              HasSubstr("TOML cannot hold the texts of cluster"));
  EXPECT_THROW(write_cluster(cluster, file()), ConfigError);
  EXPECT_EQ(test::read_file(file()), kSmall);
}

TEST_F(ClusterFile, RefusesAFolderThatDoesNotExist) {
  EXPECT_THROW(write_cluster(read(kSmall), folder().path() / "missing" / "mine.toml"),
               CheckpointError);
}

TEST_F(ClusterFile, SuggestsTheNameThatWasMeant) {
  EXPECT_THAT(test::message_of<ConfigError>([] { (void)read_cluster("a100-08"); }),
              AllOf(HasSubstr("there is no cluster 'a100-08' and no file of this name"),
                    HasSubstr("did you mean 'a100-80'?"), HasSubstr("v100-16, v100-32")));
  EXPECT_THAT(test::message_of<ConfigError>([] { (void)read_cluster(""); }),
              AllOf(HasSubstr("there is no cluster ''"), Not(HasSubstr("did you mean"))));
}

TEST_F(ClusterFile, HasANameForOtherFolders) {
  EXPECT_EQ(absolute_cluster_name("a100-80"), "a100-80");
  EXPECT_EQ(absolute_cluster_name("lab.toml"), std::filesystem::absolute("lab.toml").string());
  EXPECT_EQ(absolute_cluster_name("./a100-80"), std::filesystem::absolute("./a100-80").string());
  EXPECT_EQ(absolute_cluster_name("/a/lab.toml"), "/a/lab.toml");
}

TEST_F(ClusterFile, ThatCannotBeReadIsNamed) {
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)read_cluster(folder().path()); }),
              HasSubstr("cannot read the configuration file " + folder().path().string()));
  const std::string too_long(10'000, 'a');  // std::filesystem::exists throws for it
  EXPECT_THROW((void)read_cluster(too_long), ConfigError);
}

TEST_F(ClusterFile, NamesLineAndKeyOfEachMistake) {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"name = mine", "mine.toml:1:8: not TOML"},
      {with("name = \"mine\"", "name = 3"), "mine.toml:2:8: name is 3, expected a text in quotes"},
      {with("[[devices]]", "[[device]]"), "mine.toml:4:3: there is no setting 'device'"},
      {with("[[devices]]", "[devices]"), "devices is { name = \"fast\""},
      {with("memory_gib", "memory_gb"), "there is no setting 'devices[0].memory_gb'"},
      {with("memory_gib = 16", "memory_gib = 0"),
       "mine.toml:6:14: devices[0].memory_gib is 0, expected a number, above 0, finite"},
      {with("memory_gb_per_s = 500", "memory_gb_per_s = inf"),
       "devices[0].memory_gb_per_s is inf, expected a number, above 0, finite"},
      {with("float32 = 10", "float32 = -10"),
       "devices[0].teraflops.float32 is -10, expected a number, 0 or more, finite"},
      {with("float32 = 10", "fp32 = 10"), "there is no setting 'devices[0].teraflops.fp32'"},
      {with("memory_gib = 16", "memory_gib = 16\nkernel_us = -1"),
       "devices[0].kernel_us is -1, expected a number, 0 or more, finite"},
      {with("memory_gib = 16", "memory_gib = 16\nattention_share = 2"),
       "devices[0].attention_share is 2, expected a number, 0.01 to 1"},
      {with("memory_gib = 16", "memory_gib = 16\nefficiency = { product = 75 }"),
       "devices[0].efficiency.product is 75, expected a number, 0.01 to 1"},
      {with("memory_gib = 16", "memory_gib = 16\nefficiency = { half_product_gigaflops = nan }"),
       "devices[0].efficiency.half_product_gigaflops is nan, expected a number, 0 or more, finite"},
      {with("memory_gib = 16", "memory_gib = 16\nefficiency = { memory = 0 }"),
       "devices[0].efficiency.memory is 0, expected a number, 0.01 to 1"},
      {with("memory_gib = 16", "memory_gib = 16\nefficiency = { link = 1.5 }"),
       "devices[0].efficiency.link is 1.5, expected a number, 0.01 to 1"},
      {with("count = 2", "count = -1"),
       "hosts[0].count is -1, expected an integer, 0 to 100000000"},
      {with("count = 2", "count = 2.5"), "hosts[0].count is 2.5, expected an integer"},
      {with("devices = 4", "devices = 0"),
       "hosts[0].devices is 0, expected an integer, 1 to 1000000"},
      {with("count = 2", "memory_gib = -1"), "hosts[0].memory_gib is -1, expected"},
      {with("count = 2", "disk_gb_per_s = -1"), "hosts[0].disk_gb_per_s is -1, expected"},
      {with("count = 2", "failure_hours = inf"), "hosts[0].failure_hours is inf, expected"},
      {with("gb_per_s = 100", "gb_per_s = -100"), "links[0].gb_per_s is -100, expected"},
      {with("gb_per_s = 100", "latency_us = -1"), "links[0].latency_us is -1, expected"},
      {with("gb_per_s = 100", "shared_by = 0"),
       "links[0].shared_by is 0, expected an integer, 1 to 1000000"},
      {with("gb_per_s = 100", "full_duplex = 1"),
       "links[0].full_duplex is 1, expected true or false"},
      {with("gb_per_s = 100", "compute_share = 1"),
       "links[0].compute_share is 1, expected a number, 0 to 0.99"},
      {with("gb_per_s = 100", "hosts = -1"), "links[0].hosts is -1, expected"},
      {with("\"cluster\"", "\"clusters\""), "did you mean 'cluster'?"},
      {with("[[links]]", "[[operators]]\ncurve = { sizes = [0] }\n[[links]]"),
       "operators[0].curve.sizes is [0], expected a list, each a number, above 0"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(message(text), HasSubstr(expected));
}

TEST_F(ClusterFile, NamesAllMistakesAtOnce) {
  EXPECT_THAT(message(with("memory_gib = 16", "memory_gibs = 16\nmemory = 3")),
              AllOf(HasSubstr("did you mean 'devices[0].memory_gib'?"),
                    HasSubstr("there is no setting 'devices[0].memory'")));
}

TEST_F(ClusterFile, NamesTheFileAndEverythingThatIsMissing) {
  EXPECT_THAT(message("name = \"nothing\""), AllOf(HasSubstr("mine.toml: no devices; no hosts"),
                                                   HasSubstr("docs/formats/cluster.md")));
  EXPECT_THAT(message(with("memory_gb_per_s = 500\n", "")),
              HasSubstr("mine.toml: device fast: no memory_gb_per_s"));
  EXPECT_THAT(message(with("gb_per_s = 100\n", "")), HasSubstr("links 0: no gb_per_s"));
  EXPECT_THAT(message(with("device = \"fast\"", "device = \"fats\"")),
              HasSubstr("hosts 0: device 'fats' is not described"));
}

TEST_F(ClusterFile, IsReadWithAWarningOfGigabitsEnteredAsGigabytes) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(read(with("gb_per_s = 10\n", "gb_per_s = 200\n")).links[1].gb_per_s, 200);
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "trireme: warning: cluster mine, links between hosts: gb_per_s = 200 is more than known "
      "hardware has; it is in GB/s of one port and direction: 200 Gbit/s are 25\n");
}

TEST_F(ClusterFile, DescribesEachKeyForPeople) {
  Links links;
  const std::string help = config::Configuration(links).help();
  for (const char* key :
       {"level", "latency_us", "gb_per_s", "shared_by", "full_duplex", "compute_share", "hosts"}) {
    EXPECT_THAT(help, HasSubstr(std::string(key) + " = "));
  }
}

}  // namespace
}  // namespace trireme::cluster

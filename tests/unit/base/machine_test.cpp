// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/machine.h>

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

namespace trireme {
namespace {

using test::TemporaryFolder;

int affinity_size() { return static_cast<int>(allowed_cores().size()); }

TEST(AllowedCores, FollowTheAffinityMask) {
  const int wanted = allowed_cores().back();
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(static_cast<std::size_t>(wanted), &mask);
    ::sched_setaffinity(0, sizeof(mask), &mask);
    ::_exit(allowed_cores() == std::vector<int>{wanted} ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

struct Quota {
  const char* name;
  const char* file;
  const char* text;
  const char* second_file;
  const char* second_text;
  int expected;  // 0: as many as the affinity mask has
};

class AvailableCores : public testing::TestWithParam<Quota> {};

TEST_P(AvailableCores, ObeyTheQuotaOfTheControlGroup) {
  const TemporaryFolder root;
  root.write(GetParam().file, GetParam().text);
  if (GetParam().second_file != nullptr) root.write(GetParam().second_file, GetParam().second_text);
  const int expected =
      GetParam().expected == 0 ? affinity_size() : std::min(GetParam().expected, affinity_size());
  EXPECT_EQ(available_cores(root.path()), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Quotas, AvailableCores,
    testing::Values(Quota{"Version2One", "cpu.max", "100000 100000\n", nullptr, nullptr, 1},
                    Quota{"Version2RoundsDown", "cpu.max", "190000 100000\n", nullptr, nullptr, 1},
                    Quota{"Version2Half", "cpu.max", "50000 100000\n", nullptr, nullptr, 1},
                    Quota{"Version2None", "cpu.max", "max 100000\n", nullptr, nullptr, 0},
                    Quota{"Version1One", "cpu/cpu.cfs_quota_us", "100000\n",
                          "cpu/cpu.cfs_period_us", "100000\n", 1},
                    Quota{"Version1None", "cpu/cpu.cfs_quota_us", "-1\n", "cpu/cpu.cfs_period_us",
                          "100000\n", 0},
                    Quota{"Unreadable", "cpu.max", "rubbish", nullptr, nullptr, 0}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(AvailableMemory, ObeysTheLimitOfTheControlGroup) {
  const TemporaryFolder version2;
  version2.write("memory.max", "1048576\n");
  EXPECT_EQ(available_memory(version2.path()), 1048576);
  const TemporaryFolder version1;
  version1.write("memory/memory.limit_in_bytes", "2097152\n");
  EXPECT_EQ(available_memory(version1.path()), 2097152);
}

TEST(AvailableMemory, IsPhysicalMemoryWithoutALimit) {
  const TemporaryFolder none;
  const TemporaryFolder unlimited;
  unlimited.write("memory.max", "max\n");
  EXPECT_GT(available_memory(none.path()), 1 << 20);
  EXPECT_EQ(available_memory(unlimited.path()), available_memory(none.path()));
}

TEST(FreeMemory, IsWhatIsLeftInTheControlGroupWithItsCaches) {
  const TemporaryFolder version2;
  version2.write("memory.max", "1000000\n");
  version2.write("memory.current", "700000\n");
  EXPECT_EQ(free_memory(version2.path()), 300000);
  version2.write("memory.stat",
                 "anon 400000\nfile 300000\ninactive_file 50000\nactive_file 200000\n");
  EXPECT_EQ(free_memory(version2.path()), 550000);
  version2.write("memory.current", "1300000\n");
  EXPECT_EQ(free_memory(version2.path()), 0);
  const TemporaryFolder version1;
  version1.write("memory/memory.limit_in_bytes", "1000000\n");
  version1.write("memory/memory.usage_in_bytes", "700000\n");
  version1.write("memory/memory.stat",
                 "inactive_file 1\nactive_file 2\ntotal_inactive_file 30000\n"
                 "total_active_file 70000\n");
  EXPECT_EQ(free_memory(version1.path()), 400000);
}

TEST(FreeMemory, IsPartOfAllThereIsWithoutALimit) {
  const TemporaryFolder none;
  EXPECT_GT(free_memory(none.path()), 1 << 20);
  EXPECT_GT(free_memory(), 1 << 20);
}

TEST(Machine, HasAName) { EXPECT_NE(host_name(), ""); }

}  // namespace
}  // namespace trireme

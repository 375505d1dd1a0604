// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/role.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <map>
#include <string>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

std::optional<Role> role_of(const Variables& variables) {
  return read_role(Environment(variables));
}

TEST(ReadRole, FindsNoneWithoutVariables) {
  EXPECT_FALSE(role_of({}));
  EXPECT_FALSE(role_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
}

TEST(ReadRole, ReadsNativeNames) {
  const auto scheduler = role_of({{"TRIREME_ROLE", "scheduler"},
                                  {"TRIREME_WORKERS", "8"},
                                  {"TRIREME_SCHEDULER", "host0:29500"}});
  ASSERT_TRUE(scheduler);
  EXPECT_EQ(scheduler->kind, Role::Kind::kScheduler);
  EXPECT_EQ(scheduler->workers, 8);
  EXPECT_EQ(scheduler->scheduler, (HostAndPort{.host = "host0", .port = 29500}));
  const auto worker = role_of(
      {{"TRIREME_ROLE", "worker"}, {"TRIREME_SCHEDULER", "[fd00::1]:1"}, {"TRIREME_NODE_ID", "a"}});
  ASSERT_TRUE(worker);
  EXPECT_EQ(worker->kind, Role::Kind::kWorker);
  EXPECT_EQ(worker->workers, std::nullopt);
  EXPECT_EQ(worker->scheduler, (HostAndPort{.host = "fd00::1", .port = 1}));
  EXPECT_EQ(text_of(worker->scheduler), "[fd00::1]:1");
  EXPECT_EQ(worker->node_id, "a");
}

TEST(ReadRole, ReadsMindSporesNames) {
  for (const auto& [name, kind] : {std::pair("MS_SCHED", Role::Kind::kScheduler),
                                   std::pair("MS_WORKER", Role::Kind::kWorker)}) {
    const auto role = role_of({{"MS_ROLE", name},
                               {"MS_WORKER_NUM", "4"},
                               {"MS_SCHED_HOST", "127.0.0.1"},
                               {"MS_SCHED_PORT", "8118"},
                               {"MS_NODE_ID", "3"}});
    ASSERT_TRUE(role);
    EXPECT_EQ(role->kind, kind);
    EXPECT_EQ(role->workers, 4);
    EXPECT_EQ(role->scheduler, (HostAndPort{.host = "127.0.0.1", .port = 8118}));
    EXPECT_EQ(role->node_id, "3");
  }
}

TEST(ReadRole, TakesAnIpv6AddressWithOrWithoutBrackets) {
  for (const char* host : {"[::1]", "::1"}) {
    const auto role =
        role_of({{"MS_ROLE", "MS_WORKER"}, {"MS_SCHED_HOST", host}, {"MS_SCHED_PORT", "8118"}});
    ASSERT_TRUE(role);
    EXPECT_EQ(role->scheduler, (HostAndPort{.host = "::1", .port = 8118}));
  }
}

TEST(ReadRole, TakesSwitchesOfMindSporeThatAreOff) {
  EXPECT_TRUE(role_of({{"TRIREME_ROLE", "worker"},
                       {"TRIREME_SCHEDULER", "h:1"},
                       {"MS_ENABLE_SSL", "False"},
                       {"MS_SERVER_NUM", "0"},
                       {"MS_ENABLE_RECOVERY", "0"}}));
}

TEST(ReadRole, TakesBothFamiliesIfTheyAgree) {
  EXPECT_TRUE(role_of({{"MS_ROLE", "MS_WORKER"},
                       {"TRIREME_ROLE", "worker"},
                       {"MS_SCHED_HOST", "host0"},
                       {"MS_SCHED_PORT", "1"},
                       {"TRIREME_SCHEDULER", "host0:1"}}));
}

TEST(ReadRole, IsTakenOnceALauncherHasGivenARank) {
  EXPECT_FALSE(role_of({{"MS_ROLE", "MS_WORKER"},
                        {"RANK", "0"},
                        {"WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "host"},
                        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                        {"TRIREME_RUN_ID", "host-1-2"}}));
}

struct RoleMistake {
  const char* name;
  Variables variables;
  const char* expected;
};

class ReadRoleMistake : public testing::TestWithParam<RoleMistake> {};

TEST_P(ReadRoleMistake, IsNamed) {
  const std::string message = message_of<ConfigError>([] {
    if (!role_of(GetParam().variables)) refuse_incomplete_role(Environment(GetParam().variables));
  });
  EXPECT_THAT(message, HasSubstr(GetParam().expected));
  EXPECT_THAT(message, HasSubstr("hint: "));
}

INSTANTIATE_TEST_SUITE_P(
    Variables, ReadRoleMistake,
    testing::Values(
        RoleMistake{"Unknown",
                    {{"TRIREME_ROLE", "server"}},
                    "TRIREME_ROLE is 'server', expected scheduler or worker"},
        RoleMistake{"UnknownOfMindSpore",
                    {{"MS_ROLE", "worker"}},
                    "MS_ROLE is 'worker', expected MS_SCHED or MS_WORKER"},
        RoleMistake{"ParameterServer",
                    {{"MS_ROLE", "MS_PSERVER"}},
                    "MS_ROLE is 'MS_PSERVER': Trireme has no parameter servers"},
        RoleMistake{"Contradiction",
                    {{"TRIREME_ROLE", "worker"}, {"MS_ROLE", "MS_SCHED"}},
                    "TRIREME_ROLE is 'worker' but MS_ROLE is 'MS_SCHED', expected the same"},
        RoleMistake{"RankOfAnotherLauncher",
                    {{"MS_ROLE", "MS_WORKER"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
                    "MS_ROLE and RANK are 'MS_WORKER' and '1', expected one of them"},
        RoleMistake{"NoPort",
                    {{"MS_ROLE", "MS_WORKER"}, {"MS_SCHED_HOST", "host0"}},
                    "MS_SCHED_HOST is 'host0' but MS_SCHED_PORT is not set"},
        RoleMistake{"NoHost",
                    {{"MS_ROLE", "MS_WORKER"}, {"MS_SCHED_PORT", "1"}},
                    "MS_SCHED_PORT is '1' but MS_SCHED_HOST is not set"},
        RoleMistake{"NoScheduler",
                    {{"TRIREME_ROLE", "worker"}},
                    "makes this process a worker, but TRIREME_SCHEDULER is not set"},
        RoleMistake{"NoSchedulerOfMindSpore",
                    {{"MS_ROLE", "MS_WORKER"}},
                    "makes this process a worker, but MS_SCHED_HOST and MS_SCHED_PORT are not set"},
        RoleMistake{"NoWorkers",
                    {{"TRIREME_ROLE", "scheduler"}, {"TRIREME_SCHEDULER", "host0:1"}},
                    "makes this process a scheduler, but TRIREME_WORKERS is not set"},
        RoleMistake{"NoWorkersOfMindSpore",
                    {{"MS_ROLE", "MS_SCHED"}, {"MS_SCHED_HOST", "h"}, {"MS_SCHED_PORT", "1"}},
                    "but MS_WORKER_NUM is not set"},
        RoleMistake{"ZeroWorkers",
                    {{"MS_ROLE", "MS_SCHED"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"MS_WORKER_NUM", "0"}},
                    "MS_WORKER_NUM is '0', expected an integer from 1"},
        RoleMistake{"DifferentWorkers",
                    {{"MS_ROLE", "MS_SCHED"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"MS_WORKER_NUM", "2"},
                     {"TRIREME_WORKERS", "3"}},
                    "TRIREME_WORKERS is '3' but MS_WORKER_NUM is '2', expected the same"},
        RoleMistake{"DifferentSchedulers",
                    {{"MS_ROLE", "MS_WORKER"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"TRIREME_SCHEDULER", "h:2"}},
                    "TRIREME_SCHEDULER is 'h:2' but MS_SCHED_HOST:MS_SCHED_PORT is 'h:1'"},
        RoleMistake{"DifferentNodes",
                    {{"MS_ROLE", "MS_WORKER"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"MS_NODE_ID", "1"},
                     {"TRIREME_NODE_ID", "2"}},
                    "TRIREME_NODE_ID is '2' but MS_NODE_ID is '1'"},
        RoleMistake{"AddressWithoutPort",
                    {{"TRIREME_ROLE", "worker"}, {"TRIREME_SCHEDULER", "host0"}},
                    "TRIREME_SCHEDULER is 'host0', expected host:port"},
        RoleMistake{"AmbiguousAddress",
                    {{"TRIREME_ROLE", "worker"}, {"TRIREME_SCHEDULER", "fd00::1:5"}},
                    "TRIREME_SCHEDULER is 'fd00::1:5', expected host:port"},
        RoleMistake{"PortOutOfRange",
                    {{"TRIREME_ROLE", "worker"}, {"TRIREME_SCHEDULER", "host0:65536"}},
                    "expected host:port with a port from 1 to 65535"},
        RoleMistake{"WorkersWithoutRole",
                    {{"MS_WORKER_NUM", "4"}},
                    "MS_WORKER_NUM is '4' but neither TRIREME_ROLE nor MS_ROLE is set"},
        RoleMistake{"SchedulerWithoutRole",
                    {{"TRIREME_SCHEDULER", "host0:1"}},
                    "TRIREME_SCHEDULER is 'host0:1' but neither TRIREME_ROLE nor MS_ROLE is set"},
        RoleMistake{"NodeOfMindSporeWithoutRole",
                    {{"MS_NODE_ID", "3"}},
                    "MS_NODE_ID is '3' but neither TRIREME_ROLE nor MS_ROLE is set"},
        RoleMistake{"NameOfARunLeftOver",
                    {{"MS_ROLE", "MS_WORKER"},
                     {"RANK", "0"},
                     {"WORLD_SIZE", "1"},
                     {"TRIREME_RUN_ID", "old"}},
                    "MS_ROLE and RANK are 'MS_WORKER' and '0', expected one of them"},
        RoleMistake{"Recovery",
                    {{"MS_ROLE", "MS_WORKER"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"MS_ENABLE_RECOVERY", "1"}},
                    "MS_ENABLE_RECOVERY is '1': what has started a worker must start it"},
        RoleMistake{"Servers",
                    {{"MS_ROLE", "MS_WORKER"},
                     {"MS_SCHED_HOST", "h"},
                     {"MS_SCHED_PORT", "1"},
                     {"MS_SERVER_NUM", "2"}},
                    "MS_SERVER_NUM is '2': Trireme has no parameter servers"},
        RoleMistake{"RankTable",
                    {{"RANK_TABLE_FILE", "/hccl.json"}},
                    "RANK_TABLE_FILE is '/hccl.json': Trireme does not read rank tables"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace trireme::launch

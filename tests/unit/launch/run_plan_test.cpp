// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/run_plan.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Variables = std::map<std::string, std::string, std::less<>>;

RunOptions options_for(int processes) {
  RunOptions options;
  options.command = {"/bin/sh", "-c", "echo $RANK"};
  options.processes = processes;
  return options;
}

RunPlan plan_of(const RunOptions& options, const Variables& variables = {},
                const std::vector<int>& cores = {0, 1, 2, 3, 4}) {
  return make_plan(options, Environment(variables), cores, static_cast<int>(cores.size()));
}

TEST(RunPlan, StartsOneRankForEachCoreByDefault) {
  RunOptions options = options_for(1);
  options.processes.reset();
  EXPECT_EQ(plan_of(options).ranks.size(), 5U);
}

const Variables kOneTaskOnEachNode{{"SLURM_JOB_ID", "77"},
                                   {"SLURM_STEP_ID", "1"},
                                   {"SLURM_PROCID", "1"},
                                   {"SLURM_NTASKS", "2"},
                                   {"SLURM_LOCALID", "0"},
                                   {"SLURM_NODEID", "1"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                   {"SLURM_STEP_NODELIST", "node[08-09]"}};

TEST(RunPlan, TakesItsHostsFromAStepOfSlurm) {
  RunOptions options = options_for(4);
  complete_from_slurm(Environment(kOneTaskOnEachNode), options);
  EXPECT_EQ(options.nodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.master_address, "node08");
  EXPECT_EQ(options.master_port, 12000 + 77 * 31 + 1);
  EXPECT_EQ(plan_of(options).ranks.front().rank, 4);
}

TEST(RunPlan, RunsAloneInABatchScriptAndInATaskOfOne) {
  for (const auto& [name, value] :
       Variables{{"SLURM_STEP_ID", "4294967291"}, {"SLURM_NTASKS", "1"}}) {
    Variables variables = kOneTaskOnEachNode;
    variables[name] = value;
    variables["SLURM_PROCID"] = "0";
    variables["SLURM_NODEID"] = "0";
    variables["SLURM_STEP_TASKS_PER_NODE"] = "1";
    RunOptions options = options_for(2);
    complete_from_slurm(Environment(variables), options);
    EXPECT_EQ(options.nodes, 1) << name;
    EXPECT_FALSE(options.master_address) << name;
  }
}

TEST(RunPlan, RefusesSeveralLaunchersOnANodeOfSlurm) {
  Variables variables = kOneTaskOnEachNode;
  variables["SLURM_STEP_TASKS_PER_NODE"] = "2";
  variables["SLURM_NODEID"] = "0";
  RunOptions options = options_for(2);
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { complete_from_slurm(Environment(variables), options); }),
      HasSubstr("srun has started trireme run 2 times on this node, as 2 tasks"));
}

TEST(RunPlan, SharesTheCoresOfTheMachine) {
  RunOptions options = options_for(2);
  options.binding = Binding::kCore;
  const RunPlan plan = plan_of(options);
  EXPECT_THAT(plan.ranks.at(0).cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.ranks.at(1).cores, ElementsAre(2, 3, 4));
  EXPECT_THAT(describe(plan), HasSubstr("OMP_NUM_THREADS=2 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "
                                        "taskset -c 0,1 /bin/sh -c 'echo $RANK'\n"));
}

TEST(RunPlan, LetsRanksTakeTurnsOnTooFewCores) {
  RunOptions options = options_for(3);
  options.binding = Binding::kCore;
  const RunPlan plan = plan_of(options, {}, {4, 6});
  EXPECT_THAT(plan.ranks.at(2).cores, ElementsAre(4));
  EXPECT_THAT(describe(plan), HasSubstr("OMP_NUM_THREADS=1 "));
}

TEST(RunPlan, LeavesTheUsersThreadsAlone) {
  EXPECT_THAT(describe(plan_of(options_for(2), {{"OMP_NUM_THREADS", "8"}})),
              Not(HasSubstr("OMP_NUM_THREADS")));
  RunOptions options = options_for(2);
  options.environment = {{"OMP_NUM_THREADS", "7"}};
  EXPECT_THAT(describe(plan_of(options)), HasSubstr("OMP_NUM_THREADS=7 "));
}

TEST(RunPlan, LeavesTheUsersTunablesAlone) {
  EXPECT_THAT(describe(plan_of(options_for(2), {{"GLIBC_TUNABLES", "glibc.malloc.check=1"}})),
              Not(HasSubstr("GLIBC_TUNABLES")));
}

TEST(RunPlan, WarnsOfMoreThreadsThanCores) {
  EXPECT_TRUE(plan_of(options_for(5)).warnings.empty());
  EXPECT_THAT(plan_of(options_for(6)).warnings,
              ElementsAre(testing::AllOf(HasSubstr("6 ranks on 5 cores"), HasSubstr("-n 5 fits"))));
  EXPECT_THAT(plan_of(options_for(2), {{"OMP_NUM_THREADS", "8"}}).warnings,
              ElementsAre(testing::AllOf(HasSubstr("2 ranks of 8 threads each (OMP_NUM_THREADS) on "
                                                   "5 cores"),
                                         HasSubstr("OMP_NUM_THREADS=2 fits"))));
}

TEST(RunPlan, WaitsForTheStoreAsLongAsTheRanksDo) {
  using std::chrono::seconds;
  RunOptions options = options_for(2);
  EXPECT_EQ(plan_of(options).timeout, seconds(300));
  EXPECT_EQ(plan_of(options, {{"TRIREME_TIMEOUT", "7"}}).timeout, seconds(7));
  options.timeout = seconds(9);
  EXPECT_EQ(plan_of(options, {{"TRIREME_TIMEOUT", "7"}}).timeout, seconds(9));
}

TEST(RunPlan, TakesNoSecretFromTheCommandLine) {
  RunOptions options = options_for(2);
  options.environment = {{"TRIREME_SECRET", "0123456789abcdef"}};
  try {
    plan_of(options);
    FAIL() << "a secret that all users can read was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("--env sets TRIREME_SECRET, where every user"),
                               Not(HasSubstr("0123456789abcdef"))));
  }
}

TEST(RunPlan, LaterHostsHostNoStore) {
  RunOptions options = options_for(2);
  options.nodes = 2;
  options.node_rank = 1;
  options.master_address = "host0";
  options.master_port = 29500;
  const RunPlan plan = plan_of(options);
  EXPECT_FALSE(plan.hosts_store);
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.ranks.at(1).rank, 3);
}

TEST(RunPlan, RefusesRestartsOfSeveralHosts) {
  RunOptions options = options_for(2);
  options.nodes = 2;
  options.node_rank = 0;
  options.master_address = "host0";
  options.master_port = 29500;
  options.restarts = 1;
  EXPECT_THAT([&] { plan_of(options); },
              testing::ThrowsMessage<ConfigError>(
                  HasSubstr("--restarts is 1 and --nnodes is 2, expected one host")));
}

TEST(RunPlan, RefusesARecoveryThatNothingUses) {
  RunOptions options = options_for(2);
  options.recovery_folder = "/dev/shm/mine";
  EXPECT_THAT(
      [&] { plan_of(options); },
      testing::ThrowsMessage<ConfigError>(HasSubstr("--recovery-dir is given without --restarts")));
  options.recovery_folder.reset();
  options.recovery_interval = std::chrono::seconds(5);
  EXPECT_THAT([&] { plan_of(options); }, testing::ThrowsMessage<ConfigError>(HasSubstr(
                                             "--recovery-seconds is given without --restarts")));
}

TEST(RunPlan, RefusesNegativeRestarts) {
  RunOptions options = options_for(2);
  options.restarts = -1;
  EXPECT_THAT([&] { plan_of(options); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("--restarts is -1, expected 0 to")));
}

}  // namespace
}  // namespace trireme::launch

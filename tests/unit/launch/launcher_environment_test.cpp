// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/launcher_environment.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::launch {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

// No process above this one is a launcher.
Identity identity_of(const Variables& variables) {
  const TemporaryFolder nothing;
  return read_identity(Environment(variables), nothing.path());
}

struct Launcher {
  const char* name;
  Variables variables;
  Identity expected;
};

class ReadIdentity : public testing::TestWithParam<Launcher> {};

TEST_P(ReadIdentity, FindsTheRank) {
  const Identity identity = identity_of(GetParam().variables);
  const Identity& expected = GetParam().expected;
  EXPECT_EQ(identity.rank, expected.rank);
  EXPECT_EQ(identity.world_size, expected.world_size);
  EXPECT_EQ(identity.local_rank, expected.local_rank);
  EXPECT_EQ(identity.local_world_size, expected.local_world_size);
  EXPECT_EQ(identity.launcher, expected.launcher);
  EXPECT_EQ(identity.master_address, expected.master_address);
  EXPECT_EQ(identity.master_port, expected.master_port);
  EXPECT_EQ(identity.launcher_hosts_store, expected.launcher_hosts_store);
  EXPECT_EQ(identity.job, expected.job);
}

const Variables kTwoNodesOfSlurm{{"SLURM_JOB_ID", "77"},
                                 {"SLURM_STEP_ID", "1"},
                                 {"SLURM_PROCID", "5"},
                                 {"SLURM_NTASKS", "6"},
                                 {"SLURM_LOCALID", "1"},
                                 {"SLURM_NODEID", "1"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                                 {"SLURM_STEP_NODELIST", "node[08-09]"}};

// The same job after it was requeued.
Variables requeued(Variables variables) {
  variables["SLURM_RESTART_COUNT"] = "2";
  return variables;
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, ReadIdentity,
    testing::Values(
        Launcher{"Alone", {}, {}},
        Launcher{"Trireme",
                 {{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", "4711"},
                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                  {"TRIREME_RUN_ID", "host-1-2"}},
                 {1, 2, 1, 2, "trireme", "127.0.0.1", 4711, true, "host-1-2"}},
        Launcher{"Torchrun",
                 {{"RANK", "5"},
                  {"WORLD_SIZE", "8"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "4"},
                  {"MASTER_ADDR", "host0"},
                  {"MASTER_PORT", "29500"},
                  {"TORCHELASTIC_RUN_ID", "none"},
                  {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                  {"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"}},
                 {5, 8, 1, 4, "torchrun", "host0", 29500, false, std::nullopt}},
        Launcher{"ByHand",
                 {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
                 {1, 2, 1, 2, "torchrun", {}, {}, false, std::nullopt}},
        Launcher{"OpenMpi",
                 {{"OMPI_COMM_WORLD_RANK", "3"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"PMIX_NAMESPACE", "prte@1/x"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "1"}},
                 {3, 4, 1, 2, "openmpi", {}, {}, false, "openmpi-prte_1_x"}},
        Launcher{"Mpich",
                 {{"PMI_RANK", "2"},
                  {"PMI_SIZE", "3"},
                  {"MPI_LOCALRANKID", "2"},
                  {"MPI_LOCALNRANKS", "3"},
                  {"MASTER_ADDR", "host0"},
                  {"MASTER_PORT", "1"}},
                 {2, 3, 2, 3, "mpich", "host0", 1, false, std::nullopt}},
        Launcher{"Pals",
                 {{"PMI_RANK", "2"},
                  {"PMI_SIZE", "4"},
                  {"PMI_LOCAL_RANK", "0"},
                  {"PMI_LOCAL_SIZE", "2"},
                  {"PALS_RANKID", "2"}},
                 {2, 4, 0, 2, "pals", {}, {}, false, std::nullopt}},
        Launcher{"Mvapich",
                 {{"MV2_COMM_WORLD_RANK", "1"},
                  {"MV2_COMM_WORLD_SIZE", "2"},
                  {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                  {"MV2_COMM_WORLD_LOCAL_SIZE", "1"}},
                 {1, 2, 0, 1, "mvapich", {}, {}, false, std::nullopt}},
        Launcher{"Jsrun",
                 {{"JSM_NAMESPACE_RANK", "3"},
                  {"JSM_NAMESPACE_SIZE", "4"},
                  {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                  {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                  {"LSB_DJOB_NUMPROC", "4"}},
                 {3, 4, 1, 2, "jsrun", {}, {}, false, std::nullopt}},
        Launcher{"Horovodrun",
                 {{"HOROVOD_RANK", "1"},
                  {"HOROVOD_SIZE", "2"},
                  {"HOROVOD_LOCAL_RANK", "1"},
                  {"HOROVOD_LOCAL_SIZE", "2"}},
                 {1, 2, 1, 2, "horovodrun", {}, {}, false, std::nullopt}},
        // The variables of a batch job, which its script has too.
        Launcher{"ScriptOfLsf",
                 {{"LSB_JOBID", "5"},
                  {"LSB_DJOB_NUMPROC", "8"},
                  {"LSB_HOSTS", "a a b b"},
                  {"LSB_MCPU_HOSTS", "a 2 b 2"}},
                 {}},
        Launcher{"ScriptOfPbs",
                 {{"PBS_ENVIRONMENT", "PBS_BATCH"},
                  {"PBS_JOBID", "5.host"},
                  {"PBS_NODEFILE", "/var/spool/pbs/aux/5"},
                  {"PBS_NP", "8"},
                  {"PBS_TASKNUM", "1"},
                  {"PBS_NODENUM", "0"},
                  {"PBS_VNODENUM", "0"}},
                 {}},
        Launcher{
            "ScriptOfGridEngine", {{"JOB_ID", "5"}, {"NSLOTS", "8"}, {"PE_HOSTFILE", "/x"}}, {}},
        Launcher{"ScriptOfFlux", {{"FLUX_URI", "local:///run/flux/local"}}, {}},
        Launcher{"OneTaskOfFlux", {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}, {}},
        Launcher{"OneTaskOfSlurmWithRanksOfItsOwn",
                 {{"RANK", "0"},
                  {"WORLD_SIZE", "1"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_NTASKS", "8"}},
                 {0, 1, 0, 1, "torchrun", {}, {}, false, std::nullopt}},
        // As `env -u SLURM_STEP_ID RANK=0 WORLD_SIZE=1` gives it.
        Launcher{"TaskOfSlurmThatIsToBeAlone",
                 {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}},
                 {0, 1, 0, 1, "torchrun", {}, {}, false, std::nullopt}},
        Launcher{"BatchScriptOfSlurmThatIsToBeAlone",
                 {{"RANK", "0"},
                  {"WORLD_SIZE", "1"},
                  {"SLURM_STEP_ID", "4294967291"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "8"}},
                 {0, 1, 0, 1, "torchrun", {}, {}, false, std::nullopt}},
        Launcher{"WorkerThatHasARank",
                 {{"RANK", "0"},
                  {"WORLD_SIZE", "1"},
                  {"MS_ROLE", "MS_WORKER"},
                  {"MS_WORKER_NUM", "1"},
                  {"MS_SCHED_HOST", "host"},
                  {"MS_SCHED_PORT", "1"},
                  {"MS_NODE_ID", "0"},
                  {"MASTER_ADDR", "host"},
                  {"MASTER_PORT", "2"},
                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                  {"TRIREME_RUN_ID", "host-1-2"}},
                 {0, 1, 0, 1, "trireme", "host", 2, true, "host-1-2"}},
        Launcher{"SlurmOnOneNode",
                 {{"SLURM_JOB_ID", "77"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "2"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_STEP_TASKS_PER_NODE", "2"},
                  {"SLURM_STEP_NODELIST", "node1"},
                  {"PMI_RANK", "1"},
                  {"PMI_SIZE", "2"}},
                 {1, 2, 1, 2, "slurm", {}, {}, false, "slurm-77-0"}},
        Launcher{"SlurmOnTwoNodes",
                 kTwoNodesOfSlurm,
                 {5, 6, 1, 2, "slurm", "node08", 12000 + 77 * 31 + 1, false, "slurm-77-1"}},
        // What an earlier run has left does not meet with the new one.
        Launcher{
            "SlurmOnTwoNodesAgain",
            requeued(kTwoNodesOfSlurm),
            {5, 6, 1, 2, "slurm", "node08", 12000 + 77 * 31 + 1 + 2 * 7919, false, "slurm-77-1"}},
        Launcher{"SlurmBatchScript",
                 {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "6"}, {"SLURM_PROCID", "0"}},
                 {}},
        Launcher{"SlurmInteractiveShell",
                 {{"SLURM_JOB_ID", "77"},
                  {"SLURM_NTASKS", "6"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_ID", "4294967290"}},
                 {}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(ReadIdentity, NamesTheJobByTheNearestLauncherAboveWithItsStartTime) {
  const TemporaryFolder proc;
  const std::string fields = " 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 ";
  proc.write("self/stat", "30 (train) S 20" + fields + "900 0");
  proc.write("20/stat", "20 (a (b) c) S 10" + fields + "800 0");
  proc.write("10/stat", "10 (hydra_pmi_proxy) S 5" + fields + "700 0");
  proc.write("5/stat", "5 (mpiexec.hydra) S 1" + fields + "600 0");
  const Identity identity =
      read_identity(Environment(Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), proc.path());
  EXPECT_EQ(identity.job, "mpich-10-700");
}

struct Mistake {
  const char* name;
  Variables variables;
  const char* message;
};

class WrongVariables : public testing::TestWithParam<Mistake> {};

TEST_P(WrongVariables, AreNamedWithValueAndExpectation) {
  const std::string message = message_of<ConfigError>([] { identity_of(GetParam().variables); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("\n  hint: "));
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, WrongVariables,
    testing::Values(
        Mistake{"RankWithoutSize",
                {{"RANK", "1"}},
                "variable RANK is '1' but WORLD_SIZE is not set, expected both or neither"},
        Mistake{"SizeWithoutRank",
                {{"WORLD_SIZE", "2"}},
                "variable WORLD_SIZE is '2' but RANK is not set"},
        Mistake{"RankTooLarge",
                {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                "variable RANK is '2', expected less than WORLD_SIZE, which is '2'"},
        Mistake{"NegativeRank",
                {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
                "variable RANK is '-1', expected an integer from 0"},
        Mistake{"NoNumber",
                {{"RANK", "one"}, {"WORLD_SIZE", "2"}},
                "variable RANK is 'one', expected an integer"},
        Mistake{"SizeOfNothing",
                {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
                "variable WORLD_SIZE is '0', expected an integer from 1"},
        Mistake{"HalfOfLocal",
                {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
                "LOCAL_RANK is '0' but LOCAL_WORLD_SIZE is not set"},
        Mistake{
            "MoreLocalThanAll",
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}},
            "variable LOCAL_WORLD_SIZE is '2', expected at most WORLD_SIZE, which is '1'"},
        Mistake{
            "PortOutOfRange",
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}},
            "variable MASTER_PORT is '65536', expected an integer from 1 to 65535"},
        Mistake{"AddressWithoutPort",
                {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}},
                "MASTER_ADDR is 'a' but MASTER_PORT is not set"},
        Mistake{
            "AgentStoreWithoutAddress",
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
            "TORCHELASTIC_USE_AGENT_STORE is 'True' but MASTER_ADDR and MASTER_PORT are not set"},
        Mistake{"LeftoverRankUnderMpi",
                {{"RANK", "0"},
                 {"WORLD_SIZE", "1"},
                 {"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"}},
                "RANK and WORLD_SIZE are 0 and 1 but OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE "
                "are 1 and 2"},
        // Each task used to train alone.
        Mistake{"LeftoverRankUnderSlurm",
                {{"RANK", "0"},
                 {"WORLD_SIZE", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "3"},
                 {"SLURM_NTASKS", "8"},
                 {"SLURM_STEP_NUM_TASKS", "4"}},
                "RANK and WORLD_SIZE are 0 and 1 but srun has started this process as SLURM_PROCID "
                "3 of SLURM_STEP_NUM_TASKS 4"},
        Mistake{"LeftoverRankUnderOldSlurm",
                {{"RANK", "0"},
                 {"WORLD_SIZE", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "3"},
                 {"SLURM_NTASKS", "8"}},
                "as SLURM_PROCID 3 of SLURM_NTASKS 8"},
        Mistake{
            "HalfOfOpenMpi", {{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not set"},
        Mistake{"SizeThatIsNone",
                {{"RANK", "0"}, {"WORLD_SIZE", "2147483647"}},
                "variable WORLD_SIZE is '2147483647', expected an integer from 1 to 1048576"},
        Mistake{"RoleThatIsNotTakenYet",
                {{"MS_ROLE", "MS_WORKER"}, {"MS_SCHED_HOST", "host0"}, {"MS_SCHED_PORT", "1"}},
                "variable MS_ROLE gives this process a role in a run with a scheduler, and only "
                "trireme::init() takes it"},
        Mistake{"RoleBesideARank",
                {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MS_ROLE", "MS_WORKER"}},
                "variables MS_ROLE and RANK are 'MS_WORKER' and '0', expected one of them"},
        Mistake{"WorkersOfMindSpore",
                {{"MS_WORKER_NUM", "4"}, {"MS_SCHED_HOST", "host0"}},
                "variable MS_WORKER_NUM is '4' but neither TRIREME_ROLE nor MS_ROLE is set"},
        Mistake{"TableOfMindSpore",
                {{"RANK_TABLE_FILE", "/hccl.json"}, {"RANK_ID", "1"}, {"RANK_SIZE", "8"}},
                "variable RANK_TABLE_FILE is '/hccl.json': Trireme does not read rank tables"},
        Mistake{"TableOfMindSporeBesideARank",
                {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"RANK_TABLE_FILE", "/hccl.json"}},
                "variable RANK_TABLE_FILE is '/hccl.json'"},
        Mistake{"RunThatIsOver",
                {{"TRIREME_RUN_ID", "old"},
                 {"RANK", "0"},
                 {"WORLD_SIZE", "1"},
                 {"TRIREME_ROLE", "worker"},
                 {"TRIREME_SCHEDULER", "h:1"}},
                "variables TRIREME_ROLE and RANK are 'worker' and '0', expected one of them"},
        Mistake{"WorkersInASlurmStepOfOne",
                {{"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "1"},
                 {"MS_WORKER_NUM", "8"}},
                "variable MS_WORKER_NUM is '8' but the variables of the launcher (slurm) say that "
                "the world has 1 rank, expected the same number"},
        Mistake{"WorkersOfMpi",
                {{"OMPI_COMM_WORLD_RANK", "0"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"TRIREME_WORKERS", "8"}},
                "variable TRIREME_WORKERS is '8' but the variables of the launcher (openmpi) say "
                "that the world has 2 ranks"},
        Mistake{"RoleInASlurmStepOfOne",
                {{"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "1"},
                 {"TRIREME_ROLE", "worker"},
                 {"TRIREME_SCHEDULER", "h:1"}},
                "variable TRIREME_ROLE gives this process a role in a run with a scheduler"},
        Mistake{"NodeOfMindSpore",
                {{"MS_NODE_ID", "1"}},
                "variable MS_NODE_ID is '1' but neither TRIREME_ROLE nor MS_ROLE is set"},
        Mistake{"Flux",
                {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "8"}},
                "variable FLUX_TASK_RANK is '3': Flux has started this process as one of 8"},
        Mistake{"Pmix",
                {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prte@1"}},
                "variable PMIX_RANK is '0': PMIx has started this process as one of several"},
        Mistake{"PalsWithoutSize", {{"PALS_RANKID", "1"}}, "variable PALS_RANKID is '1': PALS has"},
        Mistake{"Alps", {{"ALPS_APP_PE", "1"}}, "variable ALPS_APP_PE is '1': ALPS has"},
        Mistake{"Lsf",
                {{"LSF_PM_TASKID", "2"}, {"LSB_DJOB_NUMPROC", "8"}},
                "variable LSF_PM_TASKID is '2': LSF has started this process as one of 8"},
        Mistake{"HalfOfJsrun",
                {{"JSM_NAMESPACE_RANK", "2"}},
                "JSM_NAMESPACE_RANK is '2' but JSM_NAMESPACE_SIZE is not set"},
        Mistake{"TaskOfPbs", {{"PBS_TASKNUM", "4"}}, "variable PBS_TASKNUM is '4': PBS has"},
        Mistake{"HostOfPbs",
                {{"PBS_TASKNUM", "1"}, {"PBS_NODENUM", "2"}},
                "variable PBS_NODENUM is '2': PBS has"},
        Mistake{"HostOfTorque", {{"PBS_VNODENUM", "3"}}, "variable PBS_VNODENUM is '3': PBS has"},
        Mistake{"HalfOfMpich", {{"PMI_SIZE", "2"}}, "PMI_RANK is not set"},
        Mistake{"SlurmWithoutSize",
                {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
                "SLURM_NTASKS is not set"},
        Mistake{"SlurmTasksUnreadable",
                {{"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2(x"}},
                "SLURM_STEP_TASKS_PER_NODE is '2(x', expected tasks per node"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace trireme::launch

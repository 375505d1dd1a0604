// SPDX-License-Identifier: Apache-2.0
// Real jobs of Slurm on two nodes: ranks find each other, and a job is cancelled, comes to its time
// limit, or loses a node. The scripts are those of examples/slurm.
#include <gmock/gmock.h>
#include <tests/processes/slurm/slurm_cluster.h>

#include <memory>
#include <string>

namespace trireme {
namespace {

using test::await;
using test::Finished;
using test::SlurmCluster;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kWorldProgram = variable("WORLD_PROGRAM");
const std::string kLeavingProgram = variable("LEAVING_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";
const std::string kScripts = variable("TRIREME_SOURCE") + "/examples/slurm/";

// Options of train.sbatch.
const std::string kTwoRanksOnANode =
    "--mincpus=2 --export=ALL,TRIREME_TIMEOUT=20,RANKS_PER_NODE=2 ";

class Slurm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster = std::make_unique<SlurmCluster>(); }
  static void TearDownTestSuite() { cluster.reset(); }
  void SetUp() override {
    if (!cluster->why_not().empty()) GTEST_SKIP() << "no Slurm here: " << cluster->why_not();
  }
  void TearDown() override {
    if (!cluster->why_not().empty()) return;
    cluster->run("scancel --user=root");
    EXPECT_TRUE(cluster->await_end());
  }
  static void expect_world(const std::string& output, const std::string& launcher) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(output, HasSubstr("rank " + std::to_string(rank) + " of 4, local " +
                                    std::to_string(rank % 2) + " of 2, by " + launcher +
                                    ", sum 6, same 1"));
    }
  }
  // Waits until a job has saved in its folder.
  static bool await_checkpoint(const std::string& folder) {
    return await(std::chrono::seconds(60), [&] {
      std::error_code missing;
      for (const auto& entry :
           std::filesystem::directory_iterator(cluster->work() / folder, missing)) {
        if (entry.path().filename().string().starts_with("demo-")) return true;
      }
      return false;
    });
  }

  static inline std::unique_ptr<SlurmCluster> cluster;
};

TEST_F(Slurm, TasksAreRanksThatFindEachOther) {
  const Finished finished = cluster->run("srun --nodes=2 --ntasks-per-node=2 " + kWorldProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  expect_world(finished.output, "slurm");
}

TEST_F(Slurm, StartsOneLauncherOnEachNode) {
  const Finished finished = cluster->run("srun --nodes=2 --ntasks-per-node=1 " + kTrireme +
                                         " run -n 2 --output all -- " + kWorldProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  expect_world(finished.output, "trireme");
}

TEST_F(Slurm, StartsWorkersOfOneScheduler) {
  test::write_file(cluster->work() / "workers.sbatch", R"(#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
trireme scheduler --workers 4 --host "$head" &
srun trireme worker -n 2 --scheduler "$head:29500" --output all -- "$@"
wait $!
)");
  cluster->run("env PATH=" + variable("TRIREME_BIN") +
               ":$PATH sbatch --wait --output=workers.out workers.sbatch " + kWorldProgram);
  expect_world(cluster->output("workers"), "trireme");
}

TEST_F(Slurm, SaysThatSeveralLaunchersOnANodeWouldRunAlone) {
  const Finished finished =
      cluster->run("srun --nodes=1 --ntasks=2 " + kTrireme + " run -n 2 -- " + kWorldProgram);
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output, HasSubstr("srun has started trireme run 2 times on this node"));
}

TEST_F(Slurm, RunsAnArrayWhoseJobsDoNotMeet) {
  test::write_file(cluster->work() / "array.sbatch", R"(#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
srun "$@" array$SLURM_ARRAY_TASK_ID $((2 + SLURM_ARRAY_TASK_ID))
)");
  const Finished finished = cluster->run(
      "sbatch --wait --array=0-2 --output=array_%a.out "
      "array.sbatch " +
      kLeavingProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  for (int task = 0; task < 3; ++task) {
    const std::string output = cluster->output("array_" + std::to_string(task));
    EXPECT_THAT(output, HasSubstr("rank 3: " + std::to_string(3 * (2 + task)) + " steps"))
        << output;
  }
}

TEST_F(Slurm, LeavesNoProcessOfACancelledJob) {
  for (const bool by_host : {false, true}) {
    const std::string name = by_host ? "cancelled_run" : "cancelled";
    const std::string program = kLeavingProgram + " " + name + " 1000000";
    const std::string job =
        by_host ? cluster->submit(
                      name, "--cpus-per-task=2 --export=ALL,PATH=" + variable("TRIREME_BIN") +
                                ":/usr/bin:/bin " + kScripts + "train_by_host.sbatch " + program)
                : cluster->submit(
                      name, "--nodes=2 " + kTwoRanksOnANode + kScripts + "train.sbatch " + program);
    ASSERT_TRUE(await_checkpoint(name)) << cluster->output(name);
    EXPECT_EQ(cluster->count("leaving_program"), 4);
    cluster->run("scancel " + job);
    EXPECT_TRUE(cluster->await_end());
    EXPECT_TRUE(await(std::chrono::seconds(30), [&] {
      return cluster->count("leaving_program") + cluster->count("trireme") == 0;
    }));
  }
}

TEST_F(Slurm, GoesOnAfterTheTimeLimit) {
  cluster->submit("limit", "--nodes=2 --time=1 --signal=USR1@45 " + kTwoRanksOnANode + kScripts +
                               "train.sbatch " + kLeavingProgram + " limit 1000000");
  EXPECT_TRUE(cluster->await_output("limit", "trireme: goes on from limit/demo-"));
  EXPECT_THAT(cluster->output("limit"),
              AllOf(HasSubstr("there is no checkpoint limit/demo-* to go on from yet"),
                    HasSubstr("asked to leave by SIGUSR1"), HasSubstr("; exit code 75"),
                    HasSubstr("exit code 75: this job goes on from its newest checkpoint")));
}

TEST_F(Slurm, GoesOnAfterANodeIsLostWithTheOtherOne) {
  cluster->submit("lost", "--nodes=1-2 " + kTwoRanksOnANode + kScripts + "train.sbatch " +
                              kLeavingProgram + " lost 1000000");
  ASSERT_TRUE(await_checkpoint("lost")) << cluster->output("lost");
  cluster->switch_off(1);
  EXPECT_TRUE(cluster->await_output("lost", "trireme: goes on from lost/demo-"))
      << cluster->output("lost") << cluster->run("squeue; sinfo").output;
  EXPECT_TRUE(await(std::chrono::seconds(30), [] {
    return cluster->count("leaving_program") == 2;
  })) << cluster->output("lost");
  cluster->start_node(1);
}

}  // namespace
}  // namespace trireme

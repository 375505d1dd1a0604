// SPDX-License-Identifier: Apache-2.0
// init() under every launcher, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::free_port;
using test::is_installed;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The temporary directory of what the tests start: logs of runs that fail stay there.
const test::TemporaryFolder& temporary() {
  static const test::TemporaryFolder folder;
  return folder;
}

Finished shell(const std::string& command) {
  return test::shell("export TMPDIR=" + temporary().path().string() + "; " + command);
}

const std::string kProgram = variable("WORLD_PROGRAM");
const std::string kHorovodProgram = variable("HOROVOD_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

TEST(Init, IsAWorldOfOneWhenStartedAlone) {
  const Finished finished = shell(kProgram);
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.output, "rank 0 of 1, local 0 of 1, by alone, sum 0, same 1\n");
}

TEST(Init, FindsAllRanksUnderTriremeRun) {
  const Finished finished = shell(kTrireme + " run -n 3 --output all -- " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  for (const char* rank :
       {"rank 0 of 3, local 0 of 3", "rank 1 of 3, local 1 of 3", "rank 2 of 3, local 2 of 3"}) {
    EXPECT_THAT(finished.output, HasSubstr(std::string(rank) + ", by trireme, sum 3, same 1"));
  }
}

// Numbers of ranks, processes and bytes are text in the store, in names of memory and in a file.
TEST(Init, MeetsUnderALocaleThatWritesNumbersOtherwise) {
  for (const std::string engine : {"shm", "gloo"}) {
    const std::string start = "TRIREME_ENGINE=" + engine + " ";
    const Finished launched = shell(start + kTrireme + " run -n 3 --timeout 1200 --output all -- " +
                                    kProgram + " --locale");
    EXPECT_EQ(launched.code, 0) << launched.output;
    EXPECT_THAT(launched.output, HasSubstr("rank 2 of 3, local 2 of 3, by trireme, sum 3, same 1"));
    const Finished again =
        shell(start + kTrireme + " run -n 2 --output all -- " + kProgram + " --locale --again");
    EXPECT_THAT(again.output, HasSubstr("rank 1 met 4 times, sum 1")) << again.output;
    // Rank 0 serves the store itself.
    const Finished by_hand =
        shell("export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " " + start +
              "; RANK=1 " + kProgram + " --locale & RANK=0 " + kProgram +
              " --locale; code=$?; wait; exit $code");
    EXPECT_EQ(by_hand.code, 0) << by_hand.output;
    EXPECT_THAT(by_hand.output, HasSubstr("rank 0 of 2, local 0 of 2, by torchrun, sum 1"));
  }
  if (!is_installed("mpirun.openmpi")) return;
  const Finished by_file =
      shell("mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 " + kProgram + " --locale");
  EXPECT_EQ(by_file.code, 0) << by_file.output;
  EXPECT_THAT(by_file.output, HasSubstr("rank 1 of 2, local 1 of 2, by openmpi, sum 1"));
}

TEST(Init, FindsRanksOfTwoLaunchersOnOneHost) {
  // Two launchers stand for two hosts; the second is a client of the first one's store.
  const std::string both = " run --nnodes 2 -n 1 --master-addr 127.0.0.1 --master-port " +
                           free_port() + " --output all --node-rank ";
  const Finished finished = shell(kTrireme + both + "0 -- " + kProgram + " & " + kTrireme + both +
                                  "1 -- " + kProgram + "; code=$?; wait; exit $code");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0 of 2, local 0 of 1"),
                                     HasSubstr("rank 1 of 2, local 0 of 1")));
}

// Ranks of other hosts used to wait for their deadline.
TEST(Init, HearsThatARankOfAnotherLauncherEndedWithoutIt) {
  const std::string both = " run --nnodes 2 -n 1 --master-addr 127.0.0.1 --master-port " +
                           free_port() + " --timeout 60 --node-rank ";
  const Finished finished = shell(kTrireme + both + "1 -- sh -c 'exit 3' & " + kTrireme + both +
                                  "0 --output all -- " + kProgram + "; code=$?; wait; exit $code");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              HasSubstr("rank 1 exited with code 3 without calling trireme::init()"));
}

TEST(Init, MeetsAtTheAddressThatTriremeRunWasGiven) {
  const Finished finished =
      shell(kTrireme + " run -n 2 --timeout 60 --master-addr 127.0.0.2 -- " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank 0 of 2"));
}

TEST(Init, IsMissedByTriremeRunOnlyWhereNobodyCalledIt) {
  const Finished met = shell(kTrireme + " run -n 2 -- " + kProgram);
  EXPECT_EQ(met.code, 0) << met.output;
  EXPECT_THAT(met.output, Not(HasSubstr("without meeting")));
  // Without the launcher's variables each process is a world of its own.
  const Finished apart = shell(kTrireme + " run -n 2 -- env -i " + kProgram);
  EXPECT_EQ(apart.code, 0) << apart.output;
  EXPECT_THAT(apart.output, HasSubstr("warning: the ranks ended without meeting: 2 processes"));
}

TEST(Init, FindsItsRankUnderTorchrun) {
  if (!std::filesystem::exists(variable("TORCHRUN")))
    GTEST_SKIP() << "no torchrun in the project's Python environment";
  const Finished finished =
      shell(variable("TORCHRUN") + " --nproc-per-node 2 --no-python " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0 of 2"),
                                     HasSubstr("rank 1 of 2, local 1 of 2, by torchrun, sum 1")));
}

TEST(Init, FindsItsRankUnderOpenMpi) {
  ASSERT_TRUE(is_installed("mpirun.openmpi")) << "install openmpi-bin, as tools/setup does";
  const Finished finished =
      shell("mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0 of 2"),
                                     HasSubstr("rank 1 of 2, local 1 of 2, by openmpi, sum 1")));
}

TEST(Init, FindsItsRankUnderMpich) {
  if (!is_installed("mpiexec.hydra")) GTEST_SKIP() << "Hydra's mpiexec is not installed";
  const Finished finished = shell("mpiexec.hydra -n 2 " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0 of 2"),
                                     HasSubstr("rank 1 of 2, local 1 of 2, by mpich, sum 1")));
}

TEST(Init, MeetsAtMasterAddressWithoutALauncher) {
  const std::string common =
      "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " RANK=";
  const Finished finished = shell(common + "0 " + kProgram + " & " + common + "1 " + kProgram +
                                  "; code=$?; wait; exit $code");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
}

// The second meeting failed: the ranks were there already.
TEST(Init, MeetsAgainWhenAllHandlesWereDropped) {
  const std::string said = "rank 1 met 4 times, sum 3";
  for (const char* engine : {"shm", "gloo"}) {
    const std::string choice = std::string("export TRIREME_ENGINE=") + engine + "; ";
    const Finished launched =
        shell(choice + kTrireme + " run -n 3 --output all -- " + kProgram + " --again");
    EXPECT_EQ(launched.code, 0) << launched.output;
    EXPECT_THAT(launched.output, HasSubstr(said));
    const Finished horovod =
        shell(choice + kTrireme + " run -n 3 --output all -- " + kHorovodProgram);
    EXPECT_EQ(horovod.code, 0) << horovod.output;
    EXPECT_THAT(horovod.output, HasSubstr(said));
    // Rank 0 serves the store itself, and the others may come to it before it has begun anew.
    const std::string manual = "WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port();
    const Finished hand = shell(choice + "for rank in 0 1 2; do RANK=$rank " + manual + " " +
                                kProgram + " --again || echo failed & done; wait");
    EXPECT_THAT(hand.output, AllOf(HasSubstr(said), Not(HasSubstr("failed")))) << engine;
  }
}

TEST(Init, MeetsAgainUnderOpenMpi) {
  ASSERT_TRUE(is_installed("mpirun.openmpi")) << "install openmpi-bin, as tools/setup does";
  const Finished finished =
      shell("mpirun.openmpi --allow-run-as-root --oversubscribe -np 3 " + kProgram + " --again");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank 1 met 4 times, sum 3"));
}

// Forks that exited deleted the file by which the ranks of one host meet.
TEST(Init, MeetsAgainUnderOpenMpiWhenForksHaveEnded) {
  ASSERT_TRUE(is_installed("mpirun.openmpi")) << "install openmpi-bin, as tools/setup does";
  const Finished finished =
      shell("mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 " + kProgram + " --forks");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("fork of rank 0 ended with 0, sum 1"),
                                     HasSubstr("fork of rank 1 ended with 0, sum 1")));
}

// They were ignored.
TEST(Init, RefusesOtherOptionsWhileTheWorldLives) {
  for (const std::string& start : {std::string(), kTrireme + " run -n 2 -- "}) {
    const Finished finished = shell(start + kProgram + " --other-options");
    EXPECT_THAT(
        finished.output,
        AllOf(HasSubstr("init was called again"), HasSubstr("engine gloo where it has auto"),
              HasSubstr("timeout (ms) 7000 where it has"), HasSubstr("same options pass")))
        << start;
  }
}

TEST(Init, IsNotReplacedByAnEmptyGroupAmongSeveralRanks) {
  EXPECT_THAT(shell(kProgram + " --no-group").output, HasSubstr("a group of 1"));
  EXPECT_THAT(shell(kTrireme + " run -n 2 -- " + kProgram + " --no-group").output,
              AllOf(HasSubstr("Trainer was given no group in rank "), HasSubstr("of 2"),
                    HasSubstr("world.group")));
}

TEST(Init, SaysAtOnceThatARankLeftWithoutCallingIt) {
  const Finished finished =
      shell(kTrireme + " run -n 2 --timeout 3600 -- " + kProgram + " --rank-1-leaves");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("rank 1 exited with code 0 without calling trireme::init()"),
                    Not(HasSubstr("frame #"))));
}

TEST(Init, ListsTheRankThatNeverCallsItAfterTheDeadline) {
  const Finished finished =
      shell(kTrireme + " run -n 3 --timeout 1 -- " + kProgram + " --rank-1-sleeps");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("came: 0, 2; missing: 1"), Not(HasSubstr("frame #"))));
}

TEST(Init, LeavesNoFileBehindWhenAMeetingUnderMpirunFails) {
  // What Open MPI would set; the other rank never comes.
  const test::TemporaryFolder empty;
  const Finished finished =
      shell("TMPDIR=" + empty.path().string() +
            " TRIREME_TIMEOUT=1 PMIX_NAMESPACE=job OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "
            "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 " +
            kProgram);
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output, HasSubstr("came: 0; missing: 1"));
  EXPECT_TRUE(std::filesystem::is_empty(empty.path()));
}

TEST(Init, NamesTheVariableThatIsWrong) {
  EXPECT_THAT(shell("RANK=3 WORLD_SIZE=2 " + kProgram).output,
              AllOf(HasSubstr("RANK"), HasSubstr("3"), HasSubstr("hint:")));
  EXPECT_THAT(shell("RANK=0 " + kProgram).output, HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(shell(kTrireme + " run -n 2 --env TRIREME_ENGINE=ncll -- " + kProgram).output,
              HasSubstr("no communication engine 'ncll'"));
  // It was answered with `no communication engine` and a list in which it was.
  EXPECT_THAT(shell(kTrireme + " run -n 2 --env TRIREME_ENGINE=hierarchy -- " + kProgram).output,
              HasSubstr("engine 'hierarchy' cannot be used here: all ranks are on one host"));
  EXPECT_THAT(shell("TRIREME_ENGINE=ncll " + kProgram).output,  // which connects nothing
              HasSubstr("no communication engine 'ncll', expected one of auto, staged, shm"));
}

TEST(Init, SaysThatTheNameOfAHostDoesNotResolve) {
  const Finished finished =
      shell("TRIREME_TIMEOUT=1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=host.invalid MASTER_PORT=29500 " +
            kProgram);
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("the host 'host.invalid' in MASTER_ADDR does not resolve: "),
                    HasSubstr("hint: ")));
}

TEST(Init, ShowsWhatNothingCatches) {
  const Finished finished = shell(kTrireme + " run -n 2 -- " + kProgram + " --uncaught");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr(": uncaught c10::Error: The size of tensor a (2) must match"),
                    Not(HasSubstr("frame #")), Not(HasSubstr("terminate called"))));
  EXPECT_THAT(shell("RANK=0 " + kProgram + " --uncaught").output,
              HasSubstr(": uncaught trireme::ConfigError: environment variable RANK"));
  EXPECT_THAT(shell("TRIREME_STACK=1 " + kProgram + " --uncaught").output, HasSubstr("frame #0"));
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// init() under every launcher, in real processes.
#include <trireme/base/unique_fd.h>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace trireme {
namespace {

using test::Finished;
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
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

// A port that was free a moment ago, as MASTER_PORT must be chosen by whoever starts ranks without
// a launcher.
std::string free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return std::to_string(::ntohs(address.sin_port));
}

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
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "Open MPI's mpirun is not installed";
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
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// The engine over MPI in real processes, under the launcher of the MPI that it was built with.
#include <gmock/gmock.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::is_installed;
using test::shell;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = variable("MPI_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

bool is_open_mpi() {
  static const bool is = shell(kProgram + " family").output == "Open MPI\n";
  return is;
}

// Debian has both, under names of their own.
std::string launcher(bool open_mpi) {
  if (!open_mpi) return is_installed("mpiexec.mpich") ? "mpiexec.mpich" : "mpiexec";
  const std::string name = is_installed("mpirun.openmpi") ? "mpirun.openmpi" : "mpirun";
  return name + " --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1";
}

Finished run(int ranks, const std::string& what) {
  return shell(launcher(is_open_mpi()) + " -n " + std::to_string(ranks) + " " + kProgram + " " +
               what);
}

class MpiEngine : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MpiEngine, ::testing::Values(2, 4));

TEST_P(MpiEngine, GivesWhatAPlainReferenceGives) {
  const Finished finished = run(GetParam(), "collectives");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 1: "), Not(HasSubstr("FAILED"))));
}

TEST_P(MpiEngine, ConnectsSubGroupsInAnyOrder) {
  const Finished finished = run(GetParam(), "subgroups");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 1: "), Not(HasSubstr("FAILED"))));
}

TEST(MpiEngine, CarriesAHierarchyAcrossHosts) {
  const Finished finished = run(4, "hierarchy");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 3: "), Not(HasSubstr("FAILED"))));
}

// mpirun counts a rank that leaves without MPI_Finalize as failed; what matters is that it ends.
TEST_P(MpiEngine, ThrowsAtTheDeadlineAndStillEnds) {
  const Finished finished = run(GetParam(), "deadline");
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("rank 0 goes on"), HasSubstr("0 failed"), Not(HasSubstr("FAILED"))));
}

TEST(MpiEngine, TellsAMessageOfAnotherSize) {
  const Finished finished = run(2, "wrong-size");
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("rank 0: 2 checks, 0 failed"), Not(HasSubstr("FAILED"))));
}

TEST(MpiEngine, RefusesRanksOfTriremeRun) {
  const Finished finished =
      shell(kTrireme + " run -n 2 --timeout 60 -- " + kProgram + " collectives");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output, AllOf(HasSubstr("this process was started by trireme run, expected"),
                                     HasSubstr("hint: start it by mpi")));
}

TEST(MpiEngine, RefusesRanksOfTheOtherMpi) {
  const std::string other = launcher(!is_open_mpi());
  if (!is_installed(is_open_mpi() ? "mpiexec.mpich" : "mpirun.openmpi"))
    GTEST_SKIP() << "only one MPI is installed";
  const Finished finished = shell(other + " -n 2 " + kProgram + " collectives");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output, AllOf(HasSubstr("engine mpi is built with"),
                                     HasSubstr(is_open_mpi() ? "the mpiexec of MPICH (Hydra)"
                                                             : "the mpirun of Open MPI")));
}

// Nobody was named: MPI knows no more than that an operation is not done.
TEST(MpiEngine, NamesTheRankThatIsStopped) {
  const test::TemporaryFolder folder;
  const Finished finished = shell(
      "export TRIREME_ENGINE=mpi TRIREME_TIMEOUT=5; cd " + folder.path().string() + "; " +
      launcher(is_open_mpi()) + " -n 3 " + variable("FAULTS_PROGRAM") +
      " reduce > out 2>&1 & run=$!; await() { until grep -q \"$1\" out; do kill -0 $run || break; "
      "sleep 0.05; done; }; for rank in 0 1 2; do await \"rank $rank is process\"; done; "
      "stopped=$(sed -n 's/.*rank 1 is process \\([0-9]*\\).*/\\1/p' out); kill -STOP $stopped; "
      "await 'failed: peer'; kill -KILL $stopped; wait; cat out");
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("s in all-reduce of 4 Float, number "),
                    HasSubstr("failed: peer 1: all-reduce, number "),
                    HasSubstr(": rank 1 is stopped by a signal or a debugger (process ")));
}

}  // namespace
}  // namespace trireme

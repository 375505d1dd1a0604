// SPDX-License-Identifier: Apache-2.0
// mpirun and mpiexec over two hosts, without any variable of Trireme: the launcher passes on where
// rank 0 is.
#include <gmock/gmock.h>
#include <tests/processes/named_hosts.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::is_installed;
using test::NamedHosts;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MpiOverTwoHosts : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!is_installed(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  }
  void make_hosts(NamedHosts::OwnName own = NamedHosts::OwnName::kAddress) {
    hosts_.emplace(folder_.path(), own);
    if (hosts_->why_not().empty()) return;
    GTEST_SKIP() << "no network namespaces here (they need root and iproute2): "
                 << hosts_->why_not();
  }
  // Runs `command` in four ranks, started on the first host. The first two are on host `first`.
  Finished run(const std::string& command, std::size_t first = 0) const {
    const bool is_open_mpi = GetParam() == "mpirun.openmpi";
    std::string file;
    for (const std::size_t host : {first, 1 - first}) {
      file += NamedHosts::address(host) + (is_open_mpi ? " slots=2\n" : ":2\n");
    }
    test::write_file(folder_ / "hostfile", file);
    const std::string agent = hosts_->agent().string();
    const std::string options =
        is_open_mpi ? " --allow-run-as-root --mca mpi_yield_when_idle 1 --mca plm_rsh_agent " +
                          agent + " -x TRIREME_TIMEOUT --hostfile "
                    : " -launcher ssh -launcher-exec " + agent + " -f ";
    return test::shell("cd " + folder_.path().string() +
                       "; export TRIREME_TIMEOUT=${TRIREME_TIMEOUT:-60}; timeout 120 " +
                       hosts_->on(0) + GetParam() + options + (folder_ / "hostfile").string() +
                       " -n 4 " + command);
  }
  static void expect_world(const Finished& finished) {
    EXPECT_EQ(finished.code, 0) << finished.output;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(
          finished.output,
          HasSubstr("rank " + std::to_string(rank) + " of 4, local " + std::to_string(rank % 2) +
                    " of 2, by " + (GetParam() == "mpirun.openmpi" ? "openmpi" : "mpich") +
                    ", sum 6, same 1"));
    }
    EXPECT_THAT(finished.output, Not(HasSubstr("warning")));
  }

  test::TemporaryFolder folder_;
  std::optional<NamedHosts> hosts_;
};
INSTANTIATE_TEST_SUITE_P(Launchers, MpiOverTwoHosts,
                         ::testing::Values("mpirun.openmpi", "mpiexec.mpich"),
                         [](const auto& test) {
                           return test.param.substr(test.param.find('.') + 1);
                         });

TEST_P(MpiOverTwoHosts, FindsRank0) {
  make_hosts();
  if (IsSkipped()) return;
  expect_world(run(variable("WORLD_PROGRAM")));
}

TEST_P(MpiOverTwoHosts, FindsRank0OnAnotherHostThanTheLauncher) {
  make_hosts();
  if (IsSkipped()) return;
  expect_world(run(variable("WORLD_PROGRAM"), 1));
}

TEST_P(MpiOverTwoHosts, FindsRank0WhereTheNamesOfHostsLeadToLoopback) {
  make_hosts(NamedHosts::OwnName::kLoopback);
  if (IsSkipped()) return;
  expect_world(run(variable("WORLD_PROGRAM")));
}

TEST_P(MpiOverTwoHosts, SaysWhatItTriedIfARankDoesNotCome) {
  make_hosts();
  if (IsSkipped()) return;
  test::write_file(folder_ / "some",
                   "[ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 0 ] && exec tail -f "
                   "/dev/null\nTRIREME_TIMEOUT=2 exec " +
                       variable("WORLD_PROGRAM") + "\n");
  const Finished finished = run("sh " + (folder_ / "some").string());
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output, AllOf(HasSubstr("the launcher did not pass on where rank 0 is: "),
                                     HasSubstr("before the deadline (TRIREME_TIMEOUT)"),
                                     HasSubstr("every rank must call trireme::init()")));
}

}  // namespace
}  // namespace trireme

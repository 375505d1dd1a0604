// SPDX-License-Identifier: Apache-2.0
// A scheduler with workers on two hosts, which are network namespaces.
#include <tests/processes/hierarchy/two_hosts.h>

#include <gmock/gmock.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme {
namespace {

using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kProgramOfHosts = variable("WORLD_PROGRAM");
const std::string kTriremeOfHosts = variable("TRIREME_BIN") + "/trireme";

class TwoHostsOfAScheduler : public ::testing::Test {
 protected:
  void SetUp() override {
    if (hosts_.why_not().empty()) return;
    GTEST_SKIP() << "no network namespaces here (they need root and iproute2): "
                 << hosts_.why_not();
  }

  // Runs a script in which $one and $two run a command on a host.
  test::Finished script(const std::string& text) const {
    return testing::shell("cd " + folder_.path().string() + "; export TMPDIR=$PWD one='" +
                          hosts_.on(0) + "' two='" + hosts_.on(1) + "' program=" + kProgramOfHosts +
                          " trireme=" + kTriremeOfHosts + R"(
export TRIREME_TIMEOUT=100 TRIREME_INTERFACE=eth0 TRIREME_SCHEDULER=10.231.0.1:29500
export TRIREME_SECRET=0123456789abcdef
)" + text);
  }
  std::string log(const std::string& name) const {
    return test::read_file(folder_ / (name + ".log"));
  }

 private:
  testing::TwoHosts hosts_{500};
  test::TemporaryFolder folder_;
};

TEST_F(TwoHostsOfAScheduler, MayHaveDifferentNumbersOfRanks) {
  const test::Finished finished = script(R"(
$one $trireme scheduler --workers 3 &
TRIREME_NODE_ID=a $two $trireme worker -n 2 --output all -- $program >second.log 2>&1 &
TRIREME_NODE_ID=b TRIREME_ROLE=worker $one $program >first.log 2>&1 &
wait %1; echo "scheduler ended with $?"; wait
)");
  EXPECT_THAT(finished.output, AllOf(HasSubstr("the world is complete: 3 ranks on 2 hosts"),
                                     HasSubstr("(10.231.0.2, node id a) with 2 ranks"),
                                     HasSubstr("scheduler ended with 0")));
  EXPECT_THAT(log("second"), AllOf(HasSubstr("rank 0 of 3, local 0 of 2, by trireme, sum 3"),
                                   HasSubstr("rank 1 of 3, local 1 of 2, by trireme, sum 3")));
  EXPECT_EQ(log("first"), "rank 2 of 3, local 0 of 1, by trireme, sum 3, same 1\n");
}

TEST_F(TwoHostsOfAScheduler, EndTogether) {
  const test::Finished finished = script(R"(
$one $trireme scheduler --workers 3 &
$two $trireme worker -n 2 -- $program --exits-with-5 >second.log 2>&1 &
TRIREME_ROLE=worker $one $program --waits >first.log 2>&1 &
wait %1; echo "scheduler ended with $?"; wait
)");
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr(" failed first: "), HasSubstr(", 10.231.0.2) exited"),
                    HasSubstr("scheduler ended with 5")));
  EXPECT_THAT(log("first"), AllOf(HasSubstr("is ended by its scheduler at 10.231.0.1:29500: "),
                                  HasSubstr(", 10.231.0.2) exited with code 5")));
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Data parallel training of real processes on accelerators: CUDA where LibTorch has it, else the
// fake one, which has four devices.
#include <gmock/gmock.h>
#include <tests/processes/shell.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::shell;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Finished run(int ranks, int level, const std::string& environment = "") {
  return shell(environment + " " + variable("TRIREME_BIN") + "/trireme run -n " +
               std::to_string(ranks) + " --output all -- " + variable("DEVICES_PROGRAM") + " " +
               std::to_string(level));
}

bool has_cuda() { return variable("TRIREME_HAS_CUDA") == "1"; }

// CUDA adds in another order inside a kernel; the fake accelerator computes the processor's bits.
::testing::Matcher<std::string> equals() {
  return has_cuda() ? AllOf(HasSubstr(", difference "), Not(HasSubstr("nan")))
                    : ::testing::Matcher<std::string>(HasSubstr(", difference 0\n"));
}

TEST(DataParallelOnDevices, GivesWhatOneProcessGives) {
  for (const int level : {0, 1, 2, 3}) {
    const Finished finished = run(2, level);
    EXPECT_EQ(finished.code, 0) << finished.output;
    EXPECT_THAT(finished.output, equals()) << level;
    EXPECT_THAT(finished.output, HasSubstr("engine staged, text by shm"));
    EXPECT_THAT(finished.output, HasSubstr(has_cuda() ? "rank 1 on cuda:" : "rank 1 on fake:1"));
  }
}

TEST(DataParallelOnDevices, WorksOverGlooToo) {
  const Finished finished = run(2, 2, "TRIREME_ENGINE=cpu:gloo,cuda:staged");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(equals(), HasSubstr("engine staged, text by gloo")));
}

TEST(DataParallelOnDevices, TellsRanksThatShareADevice) {
  const Finished finished = run(5, 0);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr(has_cuda() ? "ranks 0 and 1 share cuda:0 of host "
                                                    : "ranks 0 and 4 share fake:0 of host "));
}

}  // namespace
}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// Trainings whose ranks fail, and go on from the state that was kept in memory, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "RESTARTED_TRAINING_PROGRAM";
constexpr const char* kEachStep = "--restarts 3 --recovery-seconds 0";

std::string result_of(const Finished& finished) {
  const auto begin = finished.output.find("result ");
  if (begin == std::string::npos) return "no result:\n" + finished.output;
  return finished.output.substr(begin, finished.output.find('\n', begin) - begin);
}

struct Case {
  std::string plan;
  int ranks;
};

class RestartedTraining : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Plans, RestartedTraining,
                         ::testing::Values(Case{"data", 2}, Case{"zero1", 2}, Case{"zero2", 3},
                                           Case{"zero3", 2}, Case{"tensor", 2}, Case{"pipe", 2},
                                           Case{"loop", 2}, Case{"hybrid", 4}),
                         [](const auto& info) { return info.param.plan; });

TEST_P(RestartedTraining, HasTheBitsOfAnUndisturbedOne) {
  const auto& [plan, ranks] = GetParam();
  const std::string expected = result_of(run_ranks(ranks, kProgram, plan));
  const Finished finished =
      run_ranks(ranks, kProgram, plan + " 0:5:1:kill 1:14:0:throw 2:22:1:exit", kEachStep);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("restart 3 of 3"),
                                     ::testing::ContainsRegex("first step (19|2[0-2])\n")));
}

TEST(RestartedTrainings, LoseNoStepIfEachOneIsKept) {
  const Finished finished = run_ranks(2, kProgram, "data 0:20:1:kill", kEachStep);
  EXPECT_EQ(finished.code, 0) << finished.output;
  // The state of the step before may still have been on its way.
  EXPECT_THAT(finished.output, ::testing::ContainsRegex("first step (19|20)\n"));
}

TEST(RestartedTrainings, ReplaceARankThatStaysStopped) {
  const std::string expected = result_of(run_ranks(2, kProgram, "zero1"));
  const Finished finished = run_ranks(2, kProgram, "zero1 0:9:1:stop", kEachStep);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 1 stays stopped, ending it"),
                                     HasSubstr("it was stopped and did not go on")));
}

TEST(RestartedTrainings, BeginAnewIfWhatWasKeptIsDamaged) {
  const std::string expected = result_of(run_ranks(2, kProgram, "data"));
  const Finished finished = run_ranks(2, kProgram, "data 0:9:0:damage", kEachStep);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("the state that was kept before the restart cannot be used"),
                    HasSubstr("first step 1\n")));
}

TEST(RestartedTrainings, EndIfNoRestartIsLeft) {
  const Finished finished = run_ranks(2, kProgram, "data 0:3:1:exit 1:5:0:exit", "--restarts 1");
  EXPECT_EQ(finished.code, 3) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("no restart is left (--restarts 1)"));
}

TEST(RestartedTrainings, GoOnWithAWarningIfTheStateCannotBeKept) {
  const Finished finished =
      run_ranks(2, kProgram, "data", "--restarts 1 --recovery-seconds 0 --recovery-dir /proc/none");
  EXPECT_NE(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("cannot make the folder /proc/none"));
}

TEST(RestartedTrainings, LeaveNothingInMemory) {
  run_ranks(2, kProgram, "data 0:9:1:kill", kEachStep);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("trireme-recovery")));
  }
}

}  // namespace
}  // namespace trireme

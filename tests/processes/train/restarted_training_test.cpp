// SPDX-License-Identifier: Apache-2.0
// Trainings whose ranks fail, and go on from the state that was kept in memory, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
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

// The state of the step before is kept after a comparison that has found nothing.
TEST(RestartedTrainings, GoBackBeforeABitThatFlips) {
  const std::string expected = result_of(run_ranks(3, kProgram, "data"));
  const Finished finished = run_ranks(3, kProgram, "data 0:14:1:flip 1:20:2:flip",
                                      std::string(kEachStep) + " --check-replicas 1");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(
      finished.output,
      AllOf(HasSubstr("after step 14 the ranks do not hold the same bits where they must: rank 1 "),
            HasSubstr("parameter 3.bias: rank 1 differs from ranks 0, 2"),
            HasSubstr("rank 1 holds other values than its replicas, so its memory or its processor "
                      "may be at fault, as the ranks have found"),
            HasSubstr("after step 20 the ranks do not hold the same bits where they must: rank 2 "),
            HasSubstr("restart 2 of 3"), ::testing::ContainsRegex("first step (19|20)\n")));
}

// The bit is found steps later. No state is kept in between without a comparison.
TEST(RestartedTrainings, KeepNoStateWithABitThatHasFlipped) {
  const std::string expected = result_of(run_ranks(2, kProgram, "data"));
  const Finished finished = run_ranks(2, kProgram, "data 0:14:1:flip",
                                      "--restarts 1 --recovery-seconds 0 --check-replicas 1000");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  // A state would be kept after each step, and no comparison is due but for that.
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("after step 14 the ranks do not hold the same bits"),
                    HasSubstr("ranks 0, 1 differ from each other"),
                    ::testing::AnyOf(HasSubstr("first step 13\n"), HasSubstr("first step 14\n"))));
}

// What made the loss infinite is gone.
TEST(RestartedTrainings, TryAStepOnceMoreIfItsLossIsNotFinite) {
  const std::string expected = result_of(run_ranks(2, kProgram, "data"));
  const Finished finished = run_ranks(2, kProgram, "data 0:14:1:nan", kEachStep);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("the loss is not a number in epoch 2, step 2: inf on rank 1"),
                    HasSubstr("if a restart is left, the step is tried once more"),
                    HasSubstr("samples of rank 1: "), HasSubstr("restart 1 of 3"),
                    ::testing::Not(HasSubstr("restart 2 of 3"))));
}

TEST(RestartedTrainings, EndIfALossIsNotFiniteAgain) {
  const Finished finished = run_ranks(2, kProgram, "data 0:14:1:nan 1:14:1:nan", kEachStep);
  EXPECT_NE(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("the step was tried again, and it was so again"),
                                     HasSubstr("no restart follows: the failure would come again"),
                                     ::testing::Not(HasSubstr("restart 2 of 3"))));
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

TEST(RestartedTrainings, RefuseAFolderThatCannotBeMade) {
  const Finished finished =
      run_ranks(2, kProgram, "data", "--restarts 1 --recovery-seconds 0 --recovery-dir /proc/none");
  EXPECT_NE(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("cannot make the folder /proc/none"));
}

// Two workers, one of which is killed and started again, keep the state in a folder that both see.
TEST(RestartedTrainings, GoOnInTheWorldOfAScheduler) {
  const std::string expected = result_of(run_ranks(3, kProgram, "zero2"));
  const test::TemporaryFolder temporary;
  const std::string trireme = test::variable("TRIREME_BIN") + "/trireme ";
  const std::string port = test::free_port();
  const std::string worker = trireme + "worker --scheduler 127.0.0.1:" + port +
                             " --output all --recovery-seconds 0 --recovery-dir " +
                             temporary.path().string() + "/states ";
  const std::string program = " -- " + test::variable(kProgram) + " zero2 0:7:2:kill 1:16:0:throw";
  const Finished finished =
      test::shell("export TMPDIR=" + temporary.path().string() + "; " + trireme +
                  "scheduler --workers 3 --restarts 3 --grace 1 --port " + port + " & " + worker +
                  "-n 2" + program + " & " + worker + "-n 1" + program + " & wait");
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("restart 2 of 3: waits for 3 ranks to come again"),
                                     ::testing::ContainsRegex("first step 1[456]\n"),
                                     HasSubstr("all 3 ranks exited with code 0")));
}

// The worker whose rank is faulty is another one than that whose rank ends first, as often as not.
TEST(RestartedTrainings, TellTheSchedulerWhichRankIsFaulty) {
  const std::string expected = result_of(run_ranks(3, kProgram, "data"));
  const test::TemporaryFolder temporary;
  const std::string folder = temporary.path().string();
  const std::string trireme = test::variable("TRIREME_BIN") + "/trireme ";
  const std::string port = test::free_port();
  const std::string worker = trireme + "worker --scheduler 127.0.0.1:" + port +
                             " --output all --recovery-seconds 0 --check-replicas 1 "
                             "--recovery-dir " +
                             folder + "/states ";
  const std::string program = " -- " + test::variable(kProgram) + " data 0:7:2:flip";
  const Finished finished =
      test::shell("export TMPDIR=" + folder + "; " + trireme +
                  "scheduler --workers 3 --restarts 1 --grace 1 --port " + port + " --run-dir " +
                  folder + "/run & " + worker + "-n 2" + program + " & " + worker + "-n 1" +
                  program + " & wait; cat " + folder + "/run/journal.jsonl");
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("trireme: rank 2 (on "),
                                     HasSubstr(") holds other values than its replicas"),
                                     ::testing::ContainsRegex("\"event\":\"failure\".*\"rank\":2"),
                                     HasSubstr("all 3 ranks exited with code 0")));
}

// The scheduler is killed in the middle of a step, and another one takes up its run.
TEST(RestartedTrainings, GoOnUnderAnotherScheduler) {
  const std::string expected = result_of(run_ranks(3, kProgram, "zero2"));
  const test::TemporaryFolder temporary;
  const std::string folder = temporary.path().string();
  const std::string trireme = test::variable("TRIREME_BIN") + "/trireme ";
  const std::string port = test::free_port();
  const std::string worker = trireme + "worker --scheduler 127.0.0.1:" + port +
                             " --timeout 60 --output all --recovery-seconds 0 --recovery-dir " +
                             folder + "/states ";
  const std::string program = " -- " + test::variable(kProgram) + " zero2 0:9:1:wait > " + folder;
  const std::string scheduler = trireme + "scheduler --workers 3 --restarts 3 --grace 1 --port " +
                                port + " --run-dir " + folder + "/run --journal-seconds 1 & ";
  const Finished finished =
      test::shell("export TMPDIR=" + folder + "; " + scheduler + "S=$!; " + worker + "-n 2" +
                  program + "/one & " + worker + "-n 1" + program +
                  "/two & "
                  "until grep -q 'waits in step 9' " +
                  folder + "/one " + folder +
                  "/two 2>/dev/null; do sleep 0.1; done; "
                  "kill -9 $S; " +
                  scheduler + "wait; cat " + folder + "/one " + folder + "/two " + folder +
                  "/run/journal.jsonl");
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(
      finished.output,
      AllOf(HasSubstr("the ranks start again when it is back"), HasSubstr("takes up the run "),
            ::testing::ContainsRegex("first step [89]\n"),
            HasSubstr("all 3 ranks exited with code 0"),
            ::testing::ContainsRegex("\"event\":\"progress\",\"step\":[0-9]+,\"of_steps\":")));
}

TEST(RestartedTrainings, LeaveNothingInMemory) {
  const Finished finished = test::shell(
      test::variable("TRIREME_BIN") +
      "/trireme run -n 1 --restarts 1 -- sh -c 'touch $TRIREME_RECOVERY_FOLDER/state; "
      "echo folder $TRIREME_RECOVERY_FOLDER; exit $((1 - TORCHELASTIC_RESTART_COUNT))'");
  EXPECT_EQ(finished.code, 0) << finished.output;
  const auto begin = finished.output.find("/dev/shm/trireme-recovery-");
  ASSERT_NE(begin, std::string::npos) << finished.output;
  const auto end = finished.output.find('\n', begin);
  EXPECT_FALSE(std::filesystem::exists(finished.output.substr(begin, end - begin)));
}

TEST(RestartedTrainings, DoNotGoOnFromThoseOfAnotherRun) {
  const test::TemporaryFolder temporary;
  const std::string options =
      std::string(kEachStep) + " --recovery-dir " + temporary.path().string();
  run_ranks(2, kProgram, "data", options);
  const std::string expected = result_of(run_ranks(2, kProgram, "zero1"));
  const Finished finished = run_ranks(2, kProgram, "zero1 0:1:1:kill", options);
  EXPECT_EQ(result_of(finished), expected) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("first step 1\n"));
}

TEST(RestartedTrainings, RefuseDifferentFolders) {
  const Finished finished = test::shell(test::variable("TRIREME_BIN") +
                                        "/trireme run -n 2 --output all -- sh -c "
                                        "'TRIREME_RECOVERY_FOLDER=/tmp/states_$RANK exec " +
                                        test::variable(kProgram) + " data'");
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.output,
              HasSubstr("the ranks keep their states in different folders: rank 0 in "
                        "/tmp/states_0, rank 1 in /tmp/states_1"));
}

TEST(RestartedTrainings, KeepWhatRanksDidLastOfEachFailure) {
  const test::TemporaryFolder temporary;
  const Finished finished =
      run_ranks(2, kProgram, "data 0:5:1:kill",
                std::string(kEachStep) + " --log-dir " + temporary.path().string());
  EXPECT_EQ(finished.code, 0) << finished.output;
  const auto folder = temporary.path() / "failure_0";
  EXPECT_THAT(finished.output, HasSubstr("trireme doctor --dump " + folder.string()));
  EXPECT_FALSE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace trireme

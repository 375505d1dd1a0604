// SPDX-License-Identifier: Apache-2.0
// Runs that are asked to leave: they save, end with a code of their own, and are resumed to the
// bits of a run that nobody disturbed.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <csignal>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Finished;
using test::Launched;
using test::shell;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLeft = 75;

class Leaving : public ::testing::Test {
 protected:
  // Runs the program with `ranks` ranks.
  Finished run(int ranks, const std::string& arguments, const std::string& options = "",
               const std::string& folder = "runs") const {
    return shell("cd " + folder_.path().string() + "; TMPDIR=$PWD " + variable("TRIREME_BIN") +
                 "/trireme run -n " + std::to_string(ranks) + " --output all --timeout 60 " +
                 options + " -- " + variable("LEAVING_PROGRAM") + " " + folder + " " + arguments);
  }
  std::vector<std::string> command(const std::string& arguments,
                                   std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {"run", "-n", "2", "--output", "all"});
    for (const std::string& word : {std::string("--"), std::string("sh"), std::string("-c"),
                                    "exec " + variable("LEAVING_PROGRAM") + " " +
                                        (folder_ / "runs").string() + " " + arguments}) {
      options.push_back(word);
    }
    return options;
  }
  static std::string digest_of(const Finished& finished) {
    const auto at = finished.output.find("digest ");
    return at == std::string::npos ? finished.output : finished.output.substr(at, 23);
  }

  test::TemporaryFolder folder_;
};

TEST_F(Leaving, OfAllRanksAtOneStepIfOneIsAskedAndGoingOnGivesTheSameBits) {
  const Finished whole = run(2, "3", "", "whole");
  ASSERT_THAT(whole.output, HasSubstr("rank 1: 18 steps, digest ")) << whole.output;
  const Finished left = run(2, "3 --rank 1 --step 8 --signal USR1");
  EXPECT_EQ(left.code, kLeft) << left.output;
  EXPECT_THAT(left.output,
              AllOf(HasSubstr("asked to leave by SIGUSR1 on rank 1; saved runs/demo-2_3; exit "
                              "code 75"),
                    HasSubstr("\n  to resume: "), HasSubstr(" run --resume -n 2"),
                    Not(HasSubstr("digest"))));
  const Finished resumed = run(2, "3", "--resume");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_THAT(resumed.output,
              AllOf(HasSubstr("goes on from runs/demo-2_3"), HasSubstr("rank 0: 18 steps")));
  EXPECT_EQ(digest_of(resumed), digest_of(whole));
}

TEST_F(Leaving, OfOneProcessWithoutALauncher) {
  const std::string command = variable("LEAVING_PROGRAM") + " " + (folder_ / "runs").string();
  const Finished left = shell(command + " 3 --rank 0 --step 4 --signal TERM");
  EXPECT_EQ(left.code, kLeft) << left.output;
  EXPECT_THAT(left.output, HasSubstr("asked to leave by SIGTERM; saved "));
  const Finished resumed = shell(command + " 3 --resumes 1");
  const Finished whole =
      shell(variable("LEAVING_PROGRAM") + " " + (folder_ / "whole").string() + " 3");
  EXPECT_EQ(digest_of(resumed), digest_of(whole));
}

TEST_F(Leaving, GoesOnWithAnotherNumberOfRanksAfterTheSameRows) {
  EXPECT_EQ(run(2, "3 --rank 0 --step 8 --signal TERM").code, kLeft);
  const Finished resumed = run(1, "3", "--resume");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  // 3 steps of 8 rows are 6 of 4 rows: after 9 of all steps come 6 of this epoch and 12 of the
  // next.
  EXPECT_THAT(resumed.output,
              AllOf(HasSubstr("goes on in epoch 2 with 1 rank along data instead of 2: after 24 "
                              "of the rows, in step 7 of 12"),
                    HasSubstr("rank 0: 27 steps")));
}

TEST_F(Leaving, WithoutACheckpointBeginsAnewAndSaysSo) {
  const Finished begun = run(2, "1", "--resume");
  EXPECT_EQ(begun.code, 0) << begun.output;
  EXPECT_THAT(begun.output, HasSubstr("there is no checkpoint runs/demo-* to go on from yet"));
}

TEST_F(Leaving, AtTheEndOfTheRunningTime) {
  const Finished left = run(2, "1000000", "--max-time 1");
  EXPECT_EQ(left.code, kLeft) << left.output;
  EXPECT_THAT(left.output, HasSubstr("asked to leave by the end of the running time of 1 s"));
}

TEST_F(Leaving, WhenTheLauncherIsAsked) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Launched trireme(command("1000000"));
    trireme.await_error("2 ranks");
    while (!std::filesystem::exists(folder_ / "runs/demo-2_4"))
      ASSERT_EQ(::kill(trireme.process(), 0), 0);
    trireme.signal(signal);
    EXPECT_EQ(trireme.wait(), kLeft) << trireme.error;
    EXPECT_THAT(trireme.error, AllOf(HasSubstr("; saved "), HasSubstr("to resume: ")));
    EXPECT_TRUE(trireme.await_nothing_left());
    std::filesystem::remove_all(folder_ / "runs");
  }
}

TEST_F(Leaving, EndsAtOnceByASecondSigterm) {
  const Finished ended = run(2, "1000000 --rank 1 --step 8 --signal TERM --again 1");
  EXPECT_EQ(ended.code, 128 + SIGTERM) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rank 1 failed first"));
}

TEST_F(Leaving, KeepsTheCheckpointBeforeOneThatIsNotDoneInTime) {
  const Finished ended = run(2, "1000000 --rank 0 --step 7 --signal USR1 --stuck 1", "--grace 1");
  EXPECT_EQ(ended.code, 128 + SIGTERM) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr(" was asked to leave"),
                    HasSubstr("and is not done after 1 s: it ends without a new "
                              "checkpoint. The newest complete checkpoint is runs/demo-1_5")));
  const Finished resumed = run(2, "3", "--resume");
  EXPECT_THAT(resumed.output, HasSubstr("goes on from runs/demo-1_5"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
}

TEST_F(Leaving, OfALoopByHand) {
  const Finished whole = run(2, "40 --loop 1", "", "whole");
  const Finished left = run(2, "40 --loop 1 --rank 1 --step 13 --signal USR1");
  EXPECT_EQ(left.code, kLeft) << left.output;
  EXPECT_THAT(left.output, HasSubstr("asked to leave by SIGUSR1 on rank 1; saved runs/loop-0_13"));
  const Finished resumed = run(2, "40 --loop 1");
  EXPECT_THAT(resumed.output, HasSubstr("rank 1: 40 steps"));
  EXPECT_EQ(digest_of(resumed), digest_of(whole));
}

TEST_F(Leaving, OfTheWorkersOfASchedulerIfOneIsAsked) {
  const Finished left =
      shell("cd " + folder_.path().string() + "; export TMPDIR=$PWD port=" + test::free_port() +
            " trireme=" + variable("TRIREME_BIN") +
            "/trireme program=" + variable("LEAVING_PROGRAM") + R"(
$trireme scheduler --workers 2 --port $port >scheduler.log 2>&1 & scheduler=$!
$trireme worker --scheduler 127.0.0.1:$port -- $program runs 1000000 >one.log 2>&1 & one=$!
$trireme worker --scheduler 127.0.0.1:$port -- $program runs 1000000 >two.log 2>&1 & two=$!
until ls runs 2>/dev/null | grep -q demo-; do kill -0 $one || break; sleep 0.05; done
kill -TERM $two
wait $one; echo "one ended with $?"; wait $two; echo "two ended with $?"
wait $scheduler; echo "scheduler ended with $?"; cat *.log)");
  EXPECT_THAT(left.output,
              AllOf(HasSubstr("one ended with 75"), HasSubstr("two ended with 75"),
                    HasSubstr("scheduler ended with 75"),
                    HasSubstr(" has saved and left in time: "), HasSubstr("; saved runs/demo-")));
}

TEST_F(Leaving, RefusesBadSettings) {
  EXPECT_THAT(run(1, "1", "--max-time 0").output, HasSubstr("--max-time is 0, expected 1 second"));
  const Finished finished = run(1, "1", "--env TRIREME_RESUME=yes");
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.output,
              HasSubstr("environment variable TRIREME_RESUME is 'yes', expected latest"));
}

}  // namespace
}  // namespace trireme

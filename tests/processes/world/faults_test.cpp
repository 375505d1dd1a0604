// SPDX-License-Identifier: Apache-2.0
// Ranks in processes of their own, of which one is killed or stopped: what the others say, and what
// they leave behind.
#include <gmock/gmock.h>
#include <tests/processes/free_port.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace trireme {
namespace {

using test::Launched;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = variable("FAULTS_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

// `timeout` is also that of init, which takes seconds where many tests share few cores.
std::vector<std::string> run_three(const std::string& engine, const std::string& timeout,
                                   const std::string& mode) {
  return {"run",      "-n",     "3",
          "--output", "all",    "--timeout",
          timeout,    "--env",  "TRIREME_ENGINE=" + engine,
          "--",       kProgram, mode};
}

int process_of_rank_1(Launched& run) {
  const std::string said = "rank 1 is process ";
  run.await_output("rank 0 is process ");
  run.await_output("rank 2 is process ");
  const std::string& output = run.await_output(said);
  const std::size_t begin = output.find(said) + said.size();
  return std::stoi(output.substr(begin));
}

// Nobody was named over Gloo before the deadline, nor at it.
TEST(StoppedRank, IsNamedOverGlooByALineAndInTheErrorAtTheDeadline) {
  Launched run(run_three("gloo", "10", "reduce"));
  const int process = process_of_rank_1(run);
  ::kill(process, SIGSTOP);
  const std::string who = "rank 1 is stopped by a signal or a debugger (process " +
                          std::to_string(process) + " on host";
  run.await_error("s in all-reduce of 4 Float, number ");
  run.await_error(who);
  EXPECT_THAT(run.error, Not(HasSubstr("failed: peer")));  // long before the deadline
  run.wait();
  EXPECT_THAT(run.error, AllOf(HasSubstr("failed: peer 1: all-reduce, number "), HasSubstr(who),
                               HasSubstr("kill -CONT")));
}

TEST(StoppedRank, GoesOnAsIfNothingHadBeenWhenItIsContinuedInTime) {
  Launched run(run_three("gloo", "120", "reduce"));
  const int process = process_of_rank_1(run);
  ::kill(process, SIGSTOP);
  run.await_error("rank 1 is stopped");
  ::kill(process, SIGCONT);
  run.signal(SIGINT);
  run.wait();
  EXPECT_THAT(run.error, Not(HasSubstr("failed: peer")));
}

class ConnectingRank : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, ConnectingRank, ::testing::Values("shm", "gloo"));

// It was `wait timeout after 8000ms, keys: …` with a hint about network interfaces.
TEST_P(ConnectingRank, IsNamedWhenItIsStopped) {
  Launched run(run_three(GetParam(), "10", "subgroup"));
  run.wait();
  EXPECT_THAT(run.error, AllOf(HasSubstr("failed: peer "), HasSubstr("of group 'world/1'"),
                               HasSubstr("rank 1 is stopped by a signal"),
                               Not(HasSubstr("network interface"))));
}

// Three ranks over Gloo of which rank 0 serves the store; `fault` is done to one of them. Returns
// what ranks 0 and 2 said.
std::string without_a_launcher(const std::string& timeout, const std::string& fault) {
  const test::TemporaryFolder folder;
  return test::shell("export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + test::free_port() +
                     " TRIREME_ENGINE=gloo TRIREME_TIMEOUT=" + timeout + "; cd " +
                     folder.path().string() + "; for rank in 0 1 2; do RANK=$rank " + kProgram +
                     " reduce > out.$rank 2>&1 & eval process_$rank=$!; done; "
                     "for rank in 0 1 2; do until grep -q 'is process' out.$rank; do "
                     "kill -0 $process_0 || break; sleep 0.05; done; done; " +
                     fault + "; wait; cat out.0 out.2")
      .output;
}

TEST(KilledRank, IsNamedOverGlooWithoutALauncher) {
  EXPECT_THAT(
      without_a_launcher("60", "kill -KILL $process_1"),
      AllOf(HasSubstr("failed: peer 1: all-reduce, number "),
            HasSubstr(": rank 1 has ended (process "), Not(HasSubstr("rank 1: does not answer")),
            HasSubstr("Remainder::kWrap or kDrop), or let those that are done call join()")));
}

// Whoever asked the store would wait for as long as the rank is stopped.
TEST(StoppedRank, IsNamedWhereItServesTheStore) {
  EXPECT_THAT(without_a_launcher("10",
                                 "kill -STOP $process_0; wait $process_1 $process_2; "
                                 "kill -KILL $process_0"),
              AllOf(HasSubstr("has waited"), HasSubstr("failed: peer 0: all-reduce, number "),
                    HasSubstr(": rank 0 is stopped by a signal")));
}

class KilledRankUnderALauncher : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, KilledRankUnderALauncher, ::testing::Values("shm", "gloo"));

// The launcher ended the others before they had written theirs. Over Gloo, SIGPIPE ended a rank
// that wrote to the killed one before it had noticed.
TEST_P(KilledRankUnderALauncher, LeavesDumpsOfTheOthersBesideTheLogs) {
  const test::TemporaryFolder logs;
  std::vector<std::string> words = run_three(GetParam(), "60", "reduce");
  words.insert(words.begin() + 1, {"--log-dir", logs.path().string()});
  Launched run(words);
  ::kill(process_of_rank_1(run), SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  const auto dump = [&](int rank) {
    return logs / ("trireme-dump-world-rank" + std::to_string(rank) + ".json");
  };
  EXPECT_THAT(run.error, HasSubstr("trireme doctor --dump " + logs.path().string()));
  EXPECT_TRUE(std::filesystem::exists(dump(0))) << run.error;
  EXPECT_TRUE(std::filesystem::exists(dump(2))) << run.error;
  // In shared memory that of a killed rank outlives it.
  EXPECT_EQ(std::filesystem::exists(dump(1)), std::string(GetParam()) == "shm");
  const test::Finished compared = test::shell(kTrireme + " doctor --dump " + logs.path().string());
  EXPECT_THAT(compared.output,
              AllOf(HasSubstr("group 'world' of 3 ranks"), HasSubstr("all-reduce")));
}

}  // namespace
}  // namespace trireme

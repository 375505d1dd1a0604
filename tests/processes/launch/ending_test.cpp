// SPDX-License-Identifier: Apache-2.0
// Nothing is left behind: neither after a failure, nor after a signal, nor when the launcher itself
// is killed.
#include <trireme/launch/process_tree.h>

#include <gmock/gmock.h>
#include <pty.h>
#include <sys/resource.h>
#include <tests/processes/launch/launched.h>

#include <array>
#include <filesystem>
#include <string>

namespace trireme::launch {
namespace {

using test::Launched;
using test::run_script;
using testing::HasSubstr;
using testing::Not;

// Each rank has a child in a session of its own, whose parent is gone: nothing but a search finds
// it. Rank 0 says when all of that is there, and who its parent is.
const std::string kWithDaemon =
    "( setsid sh -c 'echo daemon; exec sleep 1000' & ) | read line; echo ready parent $PPID end; ";

TEST(Ending, ARankThatFailsEndsTheOthersAndTheirChildren) {
  Launched trireme(
      run_script({"-n", "3"}, kWithDaemon + "[ $RANK = 2 ] && exit 7; sleep 1000; exit 1"));
  EXPECT_EQ(trireme.wait(), 7) << trireme.error;
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Ending, ASuccessLeavesNoChildrenEither) {
  Launched trireme(run_script({"-n", "2"}, kWithDaemon));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Ending, AFailureNamesTheDumpsThatRanksLeftInThisRun) {
  const test::TemporaryFolder logs;
  const auto stale = logs.write("trireme-dump-world-rank7.json", "{}");
  const std::string dumps = "trireme doctor --dump " + logs.path().string();
  Launched without(run_script({"-n", "1", "--log-dir", logs.path()}, "exit 3"));
  EXPECT_EQ(without.wait(), 3);
  EXPECT_THAT(without.error, testing::Not(HasSubstr(dumps)));
  EXPECT_FALSE(std::filesystem::exists(stale));
  Launched with(run_script({"-n", "1", "--log-dir", logs.path()},
                           "echo {} > $TRIREME_DUMP/trireme-dump-world-rank0.json; exit 3"));
  EXPECT_EQ(with.wait(), 3);
  EXPECT_THAT(with.error, HasSubstr(dumps));
}

class Signals : public testing::TestWithParam<int> {};

TEST_P(Signals, EndTheRanksAndTheirChildren) {
  Launched trireme(run_script({"-n", "2"}, kWithDaemon + "sleep 1000"));
  trireme.await_output("ready");
  trireme.signal(GetParam());
  EXPECT_EQ(trireme.wait(), 128 + GetParam());
  EXPECT_TRUE(trireme.is_nothing_left());
  EXPECT_THAT(trireme.error, HasSubstr("ending 2 ranks"));
}

INSTANTIATE_TEST_SUITE_P(Ending, Signals, testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT),
                         [](const auto& tested) {
                           return std::string(::sigabbrev_np(tested.param));
                         });

// The first rank asks the launcher to stop, which is still starting the others.
TEST(Ending, StopsWhileRanksAreStillBeingStarted) {
  Launched trireme(
      run_script({"-n", "1000"}, "[ $RANK = 0 ] && kill -TERM $PPID; exec sleep 1000"));
  EXPECT_EQ(trireme.wait(), 128 + SIGTERM);
  EXPECT_TRUE(trireme.is_nothing_left());
  EXPECT_THAT(trireme.error, Not(HasSubstr("ending 1000 ranks")));
}

TEST(Ending, ASecondCtrlCKillsWhatIgnoresTheFirst) {
  Launched trireme(
      run_script({"-n", "2"}, "trap '' TERM; echo ready; while :; do sleep 1000; done"));
  trireme.await_output("ready");
  trireme.signal(SIGINT);
  trireme.await_error("once more kills at once");
  trireme.signal(SIGINT);
  EXPECT_EQ(trireme.wait(), 128 + SIGINT);
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Ending, WhatIgnoresSigtermIsKilledAfterTheGracePeriod) {
  Launched trireme(run_script({"-n", "2", "--grace", "1"},
                              "trap '' TERM; echo ready; while :; do sleep 1000; done"));
  trireme.await_output("ready");
  trireme.signal(SIGTERM);
  EXPECT_EQ(trireme.wait(), 128 + SIGTERM);
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Ending, NothingIsLeftWhenTheFrontProcessIsKilled) {
  Launched trireme(
      run_script({"-n", "2"}, kWithDaemon + "trap '' TERM; while :; do sleep 1000; done"));
  trireme.await_output("ready");
  trireme.signal(SIGKILL);
  EXPECT_TRUE(trireme.await_nothing_left());
}

TEST(Ending, NothingIsLeftWhenTheWholeProcessGroupOfTheFrontIsKilled) {
  Launched trireme(run_script({"-n", "2"}, kWithDaemon + "sleep 1000"));
  trireme.await_output("ready");
  ::kill(-trireme.process(), SIGKILL);
  EXPECT_TRUE(trireme.await_nothing_left());
}

TEST(Ending, NothingIsLeftWhenTheSupervisingProcessIsKilled) {
  Launched trireme(
      run_script({"-n", "2"}, kWithDaemon + "trap '' TERM; while :; do sleep 1000; done"));
  const std::string& text = trireme.await_output(" end");
  const pid_t supervisor = std::stoi(text.substr(text.find("parent ") + 7));
  ASSERT_NE(supervisor, trireme.process());
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(trireme.wait(), 128 + SIGKILL);
  EXPECT_TRUE(trireme.is_nothing_left());
  EXPECT_THAT(
      trireme.error,
      HasSubstr("the supervising process was killed by SIGKILL (killed); all ranks were ended"));
}

// Looking for processes needs descriptors.
TEST(Ending, RanksAreAskedToEndWhereNoDescriptorsAreLeft) {
  // The trap comes first: a rank that has said that it is ready may be signalled at once.
  Launched trireme(
      run_script({"-n", "2", "--grace", "3"},
                 "trap 'echo asked; exit 0' TERM; " + kWithDaemon + "sleep 1000 & wait; exit 1"));
  const std::string& text = trireme.await_output(" end");
  const pid_t supervisor = std::stoi(text.substr(text.find("parent ") + 7));
  rlimit before{};
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, &none, nullptr), 0);
  trireme.signal(SIGTERM);
  trireme.await_error("cannot find all processes of the ranks, tries again: ");
  trireme.await_output("asked");
  ASSERT_EQ(::prlimit(supervisor, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(trireme.wait(), 128 + SIGTERM) << trireme.error;
  EXPECT_TRUE(trireme.is_nothing_left());
}

// Starts with this signal ignored, as under nohup, or in the background of a script.
class Ignored {
 public:
  explicit Ignored(int signal) : signal_(signal), before_(std::signal(signal, SIG_IGN)) {}
  Ignored(const Ignored&) = delete;
  Ignored& operator=(const Ignored&) = delete;
  ~Ignored() { std::signal(signal_, before_); }

 private:
  int signal_;
  void (*before_)(int);
};

TEST(Ending, ASignalThatWasIgnoredFromTheStartStaysIgnored) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) {
    const Ignored ignored(signal);
    Launched trireme(run_script({"-n", "2"}, "echo ready; exec sleep 1000"));
    trireme.await_output("ready");
    trireme.signal(signal);
    trireme.signal(SIGTERM);
    EXPECT_EQ(trireme.wait(), 128 + SIGTERM);
    EXPECT_THAT(trireme.error, testing::Not(HasSubstr(::sigabbrev_np(signal))));
    EXPECT_TRUE(trireme.is_nothing_left());
  }
}

// Reads a terminal until `text` has come; returns everything so far.
std::string shown_until(int terminal, const std::string& text) {
  std::string all;
  while (all.find(text) == std::string::npos) {
    pollfd more{.fd = terminal, .events = POLLIN, .revents = 0};
    std::array<char, 4096> buffer{};
    const bool is_there = ::poll(&more, 1, test::kDeadlineMs) == 1;
    const ssize_t count = is_there ? ::read(terminal, buffer.data(), buffer.size()) : -1;
    if (count <= 0) {
      ADD_FAILURE() << "no '" << text << "' in '" << all << "'";
      break;
    }
    all.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return all;
}

// The line used to begin behind `^C`, or an empty one came behind a progress bar.
TEST(Ending, CtrlCBeginsOneLineOnATerminal) {
  for (const std::string bar : {"epoch 1  50 of 100", ""}) {
    int ours = -1;
    int theirs = -1;
    ASSERT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
    const UniqueFd terminal(ours);
    const UniqueFd other_end(theirs);
    Launched trireme(run_script({"-n", "2"}, "echo ready; printf '" + bar + "'; exec sleep 1000"),
                     other_end.get(), other_end.get());
    shown_until(terminal.get(), "ready\r\n" + bar);
    ASSERT_EQ(::write(terminal.get(), "\x03", 1), 1);  // which is echoed, and reaches no process
    shown_until(terminal.get(), "^C");
    trireme.signal(SIGINT);
    EXPECT_THAT(shown_until(terminal.get(), "once more kills at once\r\n"),
                testing::StartsWith("\r\ntrireme: got SIGINT"));
    EXPECT_EQ(trireme.wait(), 128 + SIGINT);
  }
}

TEST(Ending, GraceOfNothingKillsAtOnce) {
  Launched trireme(run_script({"-n", "2", "--grace", "0"},
                              "trap 'echo asked' TERM; echo ready; while :; do sleep 1000; done"));
  trireme.await_output("ready");
  trireme.signal(SIGTERM);
  EXPECT_EQ(trireme.wait(), 128 + SIGTERM);
  EXPECT_TRUE(trireme.is_nothing_left());
}

// The rank that waits used to be blamed for the one that is stopped.
TEST(Ending, ARankThatIsStoppedIsNamedAtOnceAndBlamed) {
  const test::TemporaryFolder folder;
  const std::string go = (folder / "go").string();
  Launched trireme(run_script({"-n", "2"}, "[ $RANK = 1 ] && kill -STOP $$; until [ -e " + go +
                                               " ]; do sleep 0.05; done; echo timeout; exit 6"));
  trireme.await_error("rank 1 is stopped by SIGSTOP");
  test::write_file(go, "");
  EXPECT_EQ(trireme.wait(), 6);
  EXPECT_THAT(trireme.error,
              HasSubstr("trireme: rank 1 was stopped by a signal or a debugger, so that others "
                        "waited in vain\ntrireme: rank 0 failed first"));
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Ending, ARankThatGoesOnAfterAStopIsNotBlamed) {
  const test::TemporaryFolder folder;
  const std::string go = (folder / "go").string();
  Launched trireme(run_script({"-n", "2", "--output", "all"},
                              "[ $RANK = 1 ] && echo pid $$ end && kill -STOP $$; until [ -e " +
                                  go + " ]; do sleep 0.05; done; exit 6"));
  const std::string& text = trireme.await_output(" end");
  const pid_t rank = std::stoi(text.substr(text.find("pid ") + 4));
  trireme.await_error("rank 1 is stopped");
  ::kill(rank, SIGCONT);
  trireme.await_error("rank 1 goes on");
  test::write_file(go, "");
  EXPECT_EQ(trireme.wait(), 6);
  EXPECT_THAT(trireme.error, testing::Not(HasSubstr("waited in vain")));
}

// Both used to be waited for as long as the machine ran.
TEST(Ending, ARankThatHangsOrIsStoppedAfterTheOthersHaveEndedIsEnded) {
  for (const char* script :
       {"[ $RANK = 1 ] || exit 0; exec sleep 1000", "[ $RANK = 1 ] || exit 0; kill -STOP $$"}) {
    Launched trireme(run_script({"-n", "3", "--linger", "1"}, script));
    EXPECT_EQ(trireme.wait(), 1);
    EXPECT_THAT(trireme.error, HasSubstr("rank 1 did nothing for "));
    EXPECT_THAT(trireme.error, HasSubstr("rank 1 hung or stopped and had to be ended, logs in "));
    EXPECT_TRUE(trireme.is_nothing_left());
  }
}

TEST(Ending, ARankThatWorksAfterTheOthersHaveEndedIsNot) {
  const test::TemporaryFolder folder;
  const std::string go = (folder / "go").string();
  // Works a sixth of the time.
  const std::string work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; ";
  Launched trireme(run_script({"-n", "2", "--linger", "1"}, "[ $RANK = 1 ] || exit 0; until [ -e " +
                                                                go + " ]; do " + work + "done"));
  trireme.await_error(
      "rank 1 goes on 5 s after the other ranks have ended; ended after 1 s "
      "without processor time (--linger)");
  test::write_file(go, "");
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
}

TEST(Ending, ARankThatWasStoppedGoesOnAndEndsWell) {
  Launched trireme(run_script({"-n", "1"}, "echo ready; kill -STOP $$; echo went on; exit 4"));
  trireme.await_output("ready");
  const auto state_of_rank = [&] {
    for (const Process& process : descendants(trireme.process())) {
      if (process.name == "sh") return process.state;
    }
    return '?';
  };
  while (state_of_rank() != 'T') {
  }
  trireme.signal(SIGCONT);
  EXPECT_EQ(trireme.wait(), 4);
  EXPECT_THAT(trireme.output, HasSubstr("went on"));
}

TEST(Ending, CtrlZStopsTheRanksAndTheLauncherUntilTheyAreContinued) {
  Launched trireme(run_script(
      {"-n", "1"}, "trap 'echo continued; exit 5' CONT; echo ready; while :; do :; done"));
  trireme.await_output("ready");
  trireme.signal(SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(trireme.process(), &status, WUNTRACED), trireme.process());
  EXPECT_TRUE(WIFSTOPPED(status));
  trireme.signal(SIGCONT);
  EXPECT_EQ(trireme.wait(), 5);
  EXPECT_THAT(trireme.output, HasSubstr("continued"));
}

}  // namespace
}  // namespace trireme::launch

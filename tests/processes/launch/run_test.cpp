// SPDX-License-Identifier: Apache-2.0
// What ranks find when they start, and the exit code and report when they end.
#include <trireme/launch/listening_socket.h>

#include <gmock/gmock.h>
#include <tests/processes/launch/launched.h>

namespace trireme::launch {
namespace {

using test::Launched;
using test::read_file;
using test::run_script;
using test::TemporaryFolder;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(Run, GivesEachRankItsPlace) {
  const TemporaryFolder logs;
  Launched trireme(
      run_script({"-n", "3", "--log-dir", logs.path()},
                 "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                 "$TORCHELASTIC_USE_AGENT_STORE"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(read_file(logs.path() / ("rank_" + std::string(rank) + ".log")),
              std::string(rank) + " 3 " + rank + " 3 0 127.0.0.1 True\n");
  }
}

TEST(Run, NumbersTheRanksOfLaterHostsFurther) {
  Launched trireme(
      run_script({"--nnodes", "3", "--node-rank", "2", "--master-addr", "far", "--master-port",
                  "4711", "-n", "2", "--output", "all"},
                 "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $MASTER_ADDR $MASTER_PORT"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_THAT(trireme.output, AllOf(HasSubstr("[rank 4] 4 6 0 2 far 4711\n"),
                                    HasSubstr("[rank 5] 5 6 1 2 far 4711\n")));
}

TEST(Run, SetsTimeoutThreadsAndGivenVariables) {
  Launched trireme(
      run_script({"-n", "1", "--timeout", "9", "--env", "A=b c", "--env", "OMP_NUM_THREADS=7"},
                 "echo $TRIREME_TIMEOUT $OMP_NUM_THREADS \"$A\""));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_EQ(trireme.output, "9 7 b c\n");
}

TEST(Run, GivesTheRanksOfEachRunASecretOfTheirOwn) {
  const auto secrets = [](std::vector<std::string> options) {
    Launched trireme(run_script(std::move(options), "echo $TRIREME_SECRET"));
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    EXPECT_THAT(trireme.error, Not(HasSubstr("TRIREME_SECRET")));
    return trireme.output;
  };
  const std::string one = secrets({"-n", "1"});
  EXPECT_EQ(one.size(), 33U) << one;
  EXPECT_NE(secrets({"-n", "1"}), one);
  const TemporaryFolder logs;
  secrets({"-n", "2", "--log-dir", logs.path()});
  EXPECT_EQ(read_file(logs.path() / "rank_0.log"), read_file(logs.path() / "rank_1.log"));
}

TEST(Run, TakesTheSecretOfSeveralHostsFromItsEnvironmentAndWarnsWithoutOne) {
  const std::vector<std::string> later_host = {
      "--nnodes",      "2",   "--node-rank",   "1",   "-n", "1", "--output", "all",
      "--master-addr", "far", "--master-port", "4711"};
  Launched without(run_script(later_host, "echo \"<$TRIREME_SECRET>\""));
  EXPECT_EQ(without.wait(), 0) << without.error;
  EXPECT_THAT(without.output, HasSubstr("<>"));
  EXPECT_THAT(without.error, HasSubstr("whoever reaches port 4711 of far can mislead the ranks"));
  for (const auto& [given, code] : {std::pair("fedcba9876543210", 0), std::pair("short", 2)}) {
    ::setenv("TRIREME_SECRET", given, 1);
    Launched with(run_script(later_host, "echo \"<$TRIREME_SECRET>\""));
    ::unsetenv("TRIREME_SECRET");
    EXPECT_EQ(with.wait(), code) << with.error;
    EXPECT_EQ(with.output.find("<fedcba9876543210>") != std::string::npos, code == 0);
    EXPECT_THAT(with.error, Not(HasSubstr("can mislead")));
  }
}

TEST(Run, AsksMallocForHugePagesUnlessTold) {
  ::unsetenv("GLIBC_TUNABLES");  // which tools/test sets
  const auto ask = [](std::vector<std::string> options) {
    Launched trireme(run_script(std::move(options), "echo $GLIBC_TUNABLES"));
    EXPECT_EQ(trireme.wait(), 0) << trireme.error;
    return trireme.output;
  };
  EXPECT_EQ(ask({"-n", "1"}), "glibc.malloc.hugetlb=1\n");
  EXPECT_EQ(ask({"-n", "1", "--env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=0"}),
            "glibc.malloc.hugetlb=0\n");
}

TEST(Run, BindsARankToItsShareOfTheCores) {
  Launched trireme(run_script({"-n", "1000", "--bind", "core", "--dry-run"}, "true"));
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_THAT(trireme.output, HasSubstr("taskset -c "));
  Launched bound(
      run_script({"-n", "2", "--bind", "core"}, "grep Cpus_allowed_list /proc/self/status"));
  EXPECT_EQ(bound.wait(), 0) << bound.error;
  EXPECT_THAT(bound.output, testing::MatchesRegex("Cpus_allowed_list:\t[0-9]+[-,0-9]*\n"));
}

TEST(Run, HandsItsInputToRankZeroOnly) {
  const TemporaryFolder folder;
  const auto input = folder.write("input", "hello\n");
  Launched trireme(run_script({"-n", "1"}, std::string(std::getenv("TRIREME_BIN")) +
                                               "/trireme run -n 2 --output all -- cat < " +
                                               input.string()));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_EQ(trireme.output, "[rank 0] hello\n");
}

TEST(Run, ListensOnAPortThatIsKeptForTheRunAndFreedAfterIt) {
  Launched trireme(run_script({"-n", "2"}, "echo port $MASTER_PORT end; read line; exit 0; "));
  trireme.wait();
  const std::string text = trireme.output.substr(trireme.output.find("port ") + 5);
  const int port = std::stoi(text);
  EXPECT_EQ(listen_on(Reach::kLoopback, port).port, port);
}

TEST(Run, SaysWhoHoldsAPortThatIsInUse) {
  const ListeningSocket taken = listen_on(Reach::kLoopback, std::nullopt);
  Launched trireme(
      run_script({"-n", "2", "--master-port", std::to_string(taken.port)}, "echo ran"));
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_THAT(trireme.error, HasSubstr("error: port " + std::to_string(taken.port) +
                                       " is in use by process " + std::to_string(::getpid())));
  EXPECT_EQ(trireme.output, "");
}

TEST(Run, ReturnsTheCodeOfTheRankThatFailedAndShowsItsEnd) {
  const TemporaryFolder logs;
  Launched trireme(
      run_script({"-n", "3", "--log-dir", logs.path()},
                 "[ $RANK = 1 ] || exec sleep 1000; seq 1 30; echo last words >&2; exit 3"));
  EXPECT_EQ(trireme.wait(), 3);
  EXPECT_THAT(trireme.error, HasSubstr("rank 1 failed first: "));
  EXPECT_THAT(trireme.error,
              HasSubstr("/sh exited with code 3\n  its last lines, 20 at most:\n  | 12\n  | 13\n"));
  EXPECT_THAT(trireme.error,
              EndsWith("  | 30\n  | last words\n  its whole log: " +
                       (logs.path() / "rank_1.log").string() + "\n  2 other ranks were ended\n"));
  EXPECT_TRUE(trireme.is_nothing_left());
}

TEST(Run, NamesTheSignalThatKilledARank) {
  Launched crashed(
      run_script({"-n", "2"}, "[ $RANK = 1 ] || exec sleep 1000; ulimit -c 0; kill -SEGV $$"));
  EXPECT_EQ(crashed.wait(), 128 + SIGSEGV);
  EXPECT_THAT(crashed.error, HasSubstr("was killed by SIGSEGV (segmentation fault)\n"));
  EXPECT_THAT(crashed.error, HasSubstr("  it printed nothing\n"));

  Launched killed(run_script({"-n", "2"}, "[ $RANK = 1 ] || exec sleep 1000; kill -KILL $$"));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(
      killed.error,
      HasSubstr("was killed by SIGKILL (killed)\n  hint: somebody killed it; the kernel does when "
                "memory runs out"));
}

TEST(Run, BlamesTheRankThatFailedFirstAndNotThoseThatFollow) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const TemporaryFolder folder;
    // Rank 0 sees the end of rank 1 as it would see a closed connection, and fails at once.
    const std::string script =
        "cd " + folder.path().string() +
        "; if [ $RANK = 1 ]; then mkfifo made && mv made link; exec 3>link; kill -SEGV $$; fi; "
        "until [ -p link ]; do :; done; cat link; exit 9";
    Launched trireme(run_script({"-n", "2"}, "ulimit -c 0; " + script));
    EXPECT_EQ(trireme.wait(), 128 + SIGSEGV) << trireme.error;
    EXPECT_THAT(trireme.error, HasSubstr("rank 1 failed first"));
  }
}

// What rank 0 prints is on the console already.
TEST(Run, DoesNotRepeatWhatItHasShown) {
  Launched trireme(run_script({"-n", "1"}, "echo no data >&2; exit 3"));
  EXPECT_EQ(trireme.wait(), 3);
  EXPECT_EQ(trireme.error.find("no data"), trireme.error.rfind("no data")) << trireme.error;
  EXPECT_THAT(trireme.error, HasSubstr(" exited with code 3\n  its last lines are above\n"));
}

TEST(Run, NamesTheRanksThatFailedInTheSameWay) {
  const TemporaryFolder folder;
  // Rank 0 says nothing, rank 3 fails when all others have said why they will.
  const std::string script = "cd " + folder.path().string() +
                             "; [ $RANK = 0 ] && exec sleep 1000; echo wrong shape; >said$RANK; "
                             "[ $RANK = 3 ] || exec sleep 1000; "
                             "until [ -e said1 ] && [ -e said2 ]; do :; done; exit 3";
  Launched trireme(run_script({"-n", "4"}, script));
  EXPECT_EQ(trireme.wait(), 3);
  EXPECT_THAT(trireme.error, HasSubstr("rank 3 failed first"));
  EXPECT_THAT(trireme.error, HasSubstr("\n  the same last line: ranks 1-2\n"));
}

// Exceptions of LibTorch all end with the same hint.
TEST(Run, DoesNotTakeOneExceptionForAnother) {
  const TemporaryFolder folder;
  const std::string script =
      "cd " + folder.path().string() +
      "; [ $RANK = 1 ] && what='found Long' || what=\"rank $RANK: shapes\"; "
      "echo \"train: uncaught c10::Error: $what\"; "
      "echo '  hint: TRIREME_STACK=1 in the environment shows the stack'; "
      ">said$RANK; [ $RANK = 3 ] || exec sleep 1000; "
      "until [ -e said0 ] && [ -e said1 ] && [ -e said2 ]; do :; done; exit 3";
  Launched trireme(run_script({"-n", "4"}, script));
  EXPECT_EQ(trireme.wait(), 3);
  EXPECT_THAT(trireme.error, HasSubstr("\n  the same error: ranks 0, 2\n"));
}

TEST(Run, ServesTheStoreAtTheAddressThatItWasGiven) {
  Launched trireme(run_script({"-n", "2", "--master-addr", "127.0.0.2"}, "echo $MASTER_ADDR"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_EQ(trireme.output, "127.0.0.2\n");
  Launched elsewhere(run_script({"-n", "2", "--master-addr", "192.0.2.1"}, "echo ran"));
  EXPECT_EQ(elsewhere.wait(), 2);
  EXPECT_THAT(elsewhere.error,
              HasSubstr("--master-addr is '192.0.2.1', which is no address of this host"));
  EXPECT_EQ(elsewhere.output, "");
}

TEST(Run, SaysThatTheLoopbackInterfaceIsDown) {
  const std::string trireme_here = std::string(std::getenv("TRIREME_BIN")) + "/trireme";
  Launched trireme(
      run_script({"-n", "1"}, "unshare -rn true || { echo cannot; exit 0; }; unshare -rn " +
                                  trireme_here + " run -n 2 -- echo ran; echo code $?"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  if (trireme.output == "cannot\n") GTEST_SKIP() << "no network namespaces for this user";
  EXPECT_THAT(trireme.error, HasSubstr("this host cannot connect to its own port"));
  EXPECT_EQ(trireme.output, "code 2\n");
}

// 40 ranks whose output is read need more than the 64 descriptors of the soft limit.
TEST(Run, RaisesItsOwnLimitOfOpenFilesAndNotThatOfTheRanks) {
  const std::string trireme_here = std::string(std::getenv("TRIREME_BIN")) + "/trireme";
  Launched trireme(run_script({"-n", "1"}, "ulimit -Sn 64; " + trireme_here +
                                               " run -n 40 --output all -- sh -c 'ulimit -Sn'"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_THAT(trireme.output, HasSubstr("[rank 39] 64\n"));
}

TEST(Run, SaysThatTheLimitOfOpenFilesIsTooLowForTheRanks) {
  const std::string trireme_here = std::string(std::getenv("TRIREME_BIN")) + "/trireme";
  Launched trireme(run_script(
      {"-n", "1"}, "ulimit -n 64; " + trireme_here + " run -n 40 --output all -- echo ran"));
  EXPECT_EQ(trireme.wait(), 2) << trireme.error;
  EXPECT_THAT(trireme.error, testing::ContainsRegex("40 ranks of 40 need [0-9]+ open files in the "
                                                    "launcher, the hard limit is 64"));
  EXPECT_EQ(trireme.output, "");
}

TEST(Run, SaysThatAProgramIsMissingBeforeAnythingRuns) {
  Launched trireme({"run", "-n", "2", "--env", "PATH=/bin:/nowhere", "--", "no-such-program"});
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_EQ(trireme.error,
            "trireme: error: program 'no-such-program' not found in PATH (/bin:/nowhere)\n"
            "  hint: check its name, or give its path\n");
}

TEST(Run, SaysThatAFileIsNotExecutable) {
  const TemporaryFolder folder;
  const std::string path = folder.write("program", "#!/bin/sh\n");
  Launched trireme({"run", "-n", "2", path});
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_EQ(trireme.error, "trireme: error: cannot run " + path +
                               ": it is not executable\n  hint: chmod +x " + path + "\n");
}

TEST(Run, SaysThatAFileIsNoProgramOrItsInterpreterIsMissing) {
  const TemporaryFolder folder;
  const std::string binary = folder.write("binary", std::string("\0\1\2", 3));
  const std::string script = folder.write("script", "#!/no/such/interpreter\n");
  for (const auto& [path, what] :
       {std::pair{binary, "it is not a program that this machine can run"},
        {script, "the interpreter that it names is missing"}}) {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    Launched trireme({"run", "-n", "2", path});
    EXPECT_EQ(trireme.wait(), 2);
    EXPECT_THAT(trireme.error, HasSubstr("trireme: error: cannot run " + path + ": " + what));
    EXPECT_TRUE(trireme.is_nothing_left());
  }
}

TEST(Run, SaysThatTheLogFolderCannotBeMade) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  Launched trireme(run_script({"-n", "1", "--log-dir", file + "/logs"}, "true"));
  EXPECT_EQ(trireme.wait(), 2);
  EXPECT_THAT(trireme.error,
              HasSubstr("cannot make the log folder " + file + "/logs: Not a directory"));
}

}  // namespace
}  // namespace trireme::launch

// SPDX-License-Identifier: Apache-2.0
// Where the output of ranks goes.
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <tests/processes/launch/launched.h>

#include <sstream>

namespace trireme::launch {
namespace {

using test::Launched;
using test::read_file;
using test::run_script;
using test::TemporaryFolder;
using testing::EndsWith;
using testing::HasSubstr;

std::string numbered_lines(const std::string& start, int count) {
  std::ostringstream text;
  for (int i = 1; i <= count; ++i)
    text << start << i << " of a line that is long enough to be cut\n";
  return text.str();
}

const std::string kManyLines =
    "i=1; while [ $i -le 10000 ]; do echo \"$RANK:$i of a line that is long enough to be cut\"; "
    "i=$((i+1)); done";

TEST(Output, IsCompleteInTheLogOfEveryRankAndShownForRankZero) {
  const TemporaryFolder logs;
  Launched trireme(run_script({"-n", "4", "--log-dir", logs.path()}, kManyLines));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(read_file(logs.path() / ("rank_" + std::to_string(rank) + ".log")),
              numbered_lines(std::to_string(rank) + ":", 10000));
  }
  EXPECT_EQ(trireme.output, numbered_lines("0:", 10000));
}

TEST(Output, OfAllRanksComesInWholeMarkedLines) {
  Launched trireme(run_script({"-n", "4", "--output", "all"}, kManyLines));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  std::vector<std::string> by_rank(4);
  std::istringstream lines(trireme.output);
  for (std::string line; std::getline(lines, line);) {
    ASSERT_TRUE(line.starts_with("[rank ")) << line;
    const int rank = line.at(6) - '0';
    ASSERT_TRUE(rank >= 0 && rank < 4) << line;
    by_rank.at(static_cast<std::size_t>(rank)) += line.substr(9) + "\n";
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(by_rank.at(static_cast<std::size_t>(rank)),
              numbered_lines(std::to_string(rank) + ":", 10000));
  }
}

TEST(Output, KeepsStandardErrorApart) {
  Launched trireme(run_script({"-n", "2"}, "echo out; echo err >&2"));
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_EQ(trireme.output, "out\n");
  EXPECT_THAT(trireme.error, HasSubstr("\nerr\n"));
}

TEST(Output, CanBeNone) {
  const TemporaryFolder logs;
  Launched trireme(run_script({"-n", "2", "--output", "none", "--log-dir", logs.path()},
                              "echo out; echo err >&2"));
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_EQ(trireme.output, "");
  EXPECT_EQ(read_file(logs.path() / "rank_0.log"), "out\nerr\n");
}

TEST(Output, NamesProcessesAndLogFolderAtTheStart) {
  const TemporaryFolder logs;
  Launched trireme(run_script({"-n", "2", "--log-dir", logs.path()}, "echo $$"));
  EXPECT_EQ(trireme.wait(), 0);
  const std::string first = read_file(logs.path() / "rank_0.log");
  const std::string second = read_file(logs.path() / "rank_1.log");
  EXPECT_THAT(
      trireme.error,
      HasSubstr("trireme: 2 ranks (pids " + first.substr(0, first.size() - 1) + " " +
                second.substr(0, second.size() - 1) + "), logs in " + logs.path().string() + "\n"));
}

TEST(Output, NamesOnlyAFewOfManyProcesses) {
  Launched trireme(run_script({"-n", "9"}, "true"));
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_THAT(trireme.error,
              testing::ContainsRegex("9 ranks [(]pids [0-9]+ [0-9]+ [0-9]+ … [0-9]+[)], logs"));
}

// A run whose output was lost on a full disk used to end with 0, and without its logs.
TEST(Output, ThatIsLostIsAnErrorAndTheLogsStay) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Launched trireme(run_script({"-n", "1"}, "echo result"), full.get());
  EXPECT_EQ(trireme.wait(), 1);
  EXPECT_THAT(trireme.error, HasSubstr("standard output of the ranks was lost: No space left"));
  const auto folder = std::filesystem::directory_iterator(trireme.temporary())->path();
  EXPECT_EQ(read_file(folder / "rank_0.log"), "result\n");
}

// The launcher used to be killed by SIGXFSZ.
TEST(Output, BeyondTheLimitOfFileSizesCutsTheLogAndEndsNothing) {
  const TemporaryFolder logs;
  const std::string trireme_here = std::string(std::getenv("TRIREME_BIN")) + "/trireme";
  Launched trireme(run_script({"-n", "1"}, "ulimit -f 1; exec " + trireme_here +
                                               " run -n 1 --log-dir " + logs.path().string() +
                                               " -- seq 1 10000"));
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_THAT(trireme.output, EndsWith("\n10000\n"));
  EXPECT_THAT(trireme.error, HasSubstr("the log of rank 0 is not complete: " +
                                       (logs.path() / "rank_0.log").string()));
}

TEST(Output, IsForgottenAfterASuccessUnlessAFolderWasNamed) {
  Launched unnamed(run_script({"-n", "2"}, "echo $RANK"));
  EXPECT_EQ(unnamed.wait(), 0) << unnamed.error;
  EXPECT_THAT(unnamed.error, HasSubstr(" (kept if the run fails)\n"));
  EXPECT_TRUE(std::filesystem::is_empty(unnamed.temporary()));

  const TemporaryFolder logs;
  Launched named(run_script({"-n", "2", "--log-dir", logs.path()}, "echo $RANK"));
  EXPECT_EQ(named.wait(), 0) << named.error;
  EXPECT_EQ(read_file(logs / "rank_1.log"), "1\n");
}

TEST(Output, StaysAfterAFailureOrASignalAndTheEndSaysWhere) {
  const auto only_log_folder = [](const Launched& trireme) {
    return std::filesystem::directory_iterator(trireme.temporary())->path().string();
  };
  Launched failed(run_script({"-n", "2"}, "echo $RANK; exit $RANK"));
  EXPECT_EQ(failed.wait(), 1);
  const std::string log = only_log_folder(failed) + "/rank_1.log";
  EXPECT_EQ(read_file(log), "1\n");
  EXPECT_THAT(failed.error, HasSubstr("  its whole log: " + log + "\n"));

  Launched ended(run_script({"-n", "2"}, "echo ready; exec sleep 1000"));
  ended.await_output("ready");
  ended.signal(SIGTERM);
  EXPECT_EQ(ended.wait(), 128 + SIGTERM);
  EXPECT_THAT(ended.error, EndsWith("trireme: ended by SIGTERM (terminated), logs in " +
                                    only_log_folder(ended) + "\n"));
}

TEST(Output, GoesOnIntoTheLogWhenNobodyReadsAnyMore) {
  const TemporaryFolder logs;
  Launched trireme(run_script({"-n", "1", "--log-dir", logs.path()}, "exec 3>&-; " + kManyLines));
  trireme.await_output("0:1 ");
  trireme.close_output();
  EXPECT_EQ(trireme.wait(), 0) << trireme.error;
  EXPECT_EQ(read_file(logs.path() / "rank_0.log"), numbered_lines("0:", 10000));
}

TEST(Output, IsATerminalOfOurSizeOnlyWhereOursIsOne) {
  const std::string script =
      "exec 3>&1; test -t 1 && echo terminal $(stty size <&3) || echo no terminal; test -t 2 || "
      "echo apart";
  Launched piped(run_script({"-n", "1"}, script));
  EXPECT_EQ(piped.wait(), 0);
  EXPECT_EQ(piped.output, "no terminal\napart\n");

  int ours = -1;
  int theirs = -1;
  const winsize size{.ws_row = 33, .ws_col = 77, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  const UniqueFd terminal(ours);
  UniqueFd other_end(theirs);
  const TemporaryFolder logs;
  Launched shown(run_script({"-n", "1", "--log-dir", logs.path()}, script), other_end.get());
  other_end.reset();
  EXPECT_EQ(shown.wait(), 0) << shown.error;
  std::array<char, 4096> buffer{};
  const ssize_t count = ::read(terminal.get(), buffer.data(), buffer.size());
  EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(count)),
            "terminal 33 77\r\napart\r\n");
  EXPECT_EQ(read_file(logs.path() / "rank_0.log"), "terminal 33 77\napart\n");
}

TEST(Output, FollowsTheSizeOfOurTerminal) {
  int ours = -1;
  int theirs = -1;
  const winsize size{.ws_row = 33, .ws_col = 77, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  const UniqueFd terminal(ours);
  const UniqueFd other_end(theirs);
  Launched trireme(
      run_script({"-n", "1"},
                 "exec 3>&1; trap 'echo now $(stty size <&3) >&2; exit 0' WINCH; echo ready; "
                 "echo ready >&2; while :; do :; done"),
      other_end.get());
  trireme.await_error("ready");
  const winsize larger{.ws_row = 44, .ws_col = 88, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(terminal.get(), TIOCSWINSZ, &larger);
  trireme.signal(SIGWINCH);
  EXPECT_EQ(trireme.wait(), 0);
  EXPECT_THAT(trireme.error, HasSubstr("now 44 88"));
}

}  // namespace
}  // namespace trireme::launch

// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/exit_report.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>

#include <csignal>

namespace trireme::launch {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ExitReport, NamesSignals) {
  EXPECT_EQ(describe_signal(SIGSEGV), "SIGSEGV (segmentation fault)");
  EXPECT_EQ(describe_signal(SIGABRT), "SIGABRT (aborted)");
  EXPECT_EQ(describe_signal(SIGRTMIN + 3), "signal " + std::to_string(SIGRTMIN + 3));
}

TEST(ExitReport, DescribesHowAProcessEnded) {
  EXPECT_EQ(describe_exit(W_EXITCODE(3, 0)), "exited with code 3");
  EXPECT_EQ(describe_exit(W_EXITCODE(0, SIGKILL)), "was killed by SIGKILL (killed)");
  EXPECT_EQ(describe_exit(W_EXITCODE(0, SIGSEGV) | WCOREFLAG),
            "was killed by SIGSEGV (segmentation fault), core dumped");
  EXPECT_EQ(exit_code(W_EXITCODE(3, 0)), 3);
  EXPECT_EQ(exit_code(W_EXITCODE(0, SIGKILL)), 137);
}

TEST(ExitReport, HintsAtMemoryForSigkillOnly) {
  EXPECT_THAT(std::string(exit_hint(W_EXITCODE(0, SIGKILL))), testing::HasSubstr("memory"));
  EXPECT_EQ(exit_hint(W_EXITCODE(0, SIGSEGV)), "");
  EXPECT_EQ(exit_hint(W_EXITCODE(9, 0)), "");
}

TEST(Dumps, AreFoundByTheirNames) {
  const TemporaryFolder folder;
  folder.write("rank_0.log", "text");
  folder.write("trireme-dump-world-rank1.json", "{}");
  EXPECT_THAT(find_dumps(folder.path()),
              testing::ElementsAre(folder / "trireme-dump-world-rank1.json"));
  EXPECT_THAT(find_dumps(folder / "nothing"), testing::IsEmpty());
}

TEST(LastLines, ShowsTheEndOfAFile) {
  const TemporaryFolder folder;
  const auto file = folder.write("log", "one\ntwo\nthree");
  EXPECT_EQ(last_lines(file, 2), "  | two\n  | three\n");
  EXPECT_EQ(last_lines(file, 9), "  | one\n  | two\n  | three\n");
  EXPECT_EQ(last_lines(folder.write("empty", ""), 2), "");
  EXPECT_EQ(last_lines(folder.path() / "missing", 2), "");
}

TEST(LastLines, ShowsTheLastStateOfAProgressBar) {
  const TemporaryFolder folder;
  EXPECT_EQ(last_lines(folder.write("log", "10 %\r50 %\r90 %\nend\r\n"), 5), "  | 90 %\n  | end\n");
}

TEST(LastLines, NeverShowsHalfALineOfALongFile) {
  const TemporaryFolder folder;
  const std::string line(40'000, 'x');
  const std::string shown = "  | " + std::string(1000, 'x') + " … (39000 more bytes)\n";
  EXPECT_EQ(last_lines(folder.write("log", line + "\n" + line + "\nend\n"), 5),
            shown + "  | end\n");
}

// A line without an end, 64 KiB of it, used to go to the terminal whole.
TEST(LastLines, CutsLongLinesBetweenCharacters) {
  const TemporaryFolder folder;
  const std::string shown = last_lines(folder.write("log", std::string(999, 'x') + "éé"), 5);
  EXPECT_EQ(shown, "  | " + std::string(999, 'x') + " … (4 more bytes)\n");
  EXPECT_LT(last_lines(folder.write("log", std::string(1 << 20, 'x')), 5).size(), 1100U);
}

// More than 20 of them pushed out the message that they belong to.
TEST(LastLines, HaveNoStackFrames) {
  const TemporaryFolder folder;
  std::string log = "train: shapes cannot be multiplied\nException raised from meta at x.cpp:1\n";
  for (int frame = 0; frame < 22; ++frame) log += "frame #" + std::to_string(frame) + ": f + 0x1\n";
  EXPECT_EQ(last_lines(folder.write("log", log + "\n"), 20),
            "  | train: shapes cannot be multiplied\n  | \n");
}

TEST(LastLines, HaveThoseOfTheProgramThatLookLikeStackFrames) {
  const TemporaryFolder folder;
  EXPECT_EQ(last_lines(folder.write("log",
                                    "frame #1 of the video\nException raised from f\n"
                                    "frame #0: f + 0x1\nend\nframe #2 of the video\n"),
                       20),
            "  | frame #1 of the video\n  | end\n  | frame #2 of the video\n");
}

// What LibTorch says of a wrong shape, as it is shown when nothing catches it.
std::string uncaught(const std::string& message) {
  return "epoch 1\ntrain: uncaught c10::Error: " + message +
         "\n  hint: TRIREME_STACK=1 in the environment shows the stack\n";
}

// All of these end with the same line.
TEST(FailureOf, IsTheLastExceptionAndNotItsHint) {
  const TemporaryFolder folder;
  const auto failure = [&](const std::string& log) { return failure_of(folder.write("log", log)); };
  const Failure shapes =
      failure(uncaught("mat1 and mat2 shapes cannot be multiplied (8x10 and 12x4)"));
  EXPECT_TRUE(shapes.is_exception);
  EXPECT_THAT(shapes.text, AllOf(StartsWith("  | train: uncaught c10::Error: mat1"),
                                 HasSubstr("TRIREME_STACK=1")));
  EXPECT_NE(shapes, failure(uncaught("expected scalar type Float but found Long")));
  EXPECT_EQ(shapes, failure("one more line\n" + uncaught("mat1 and mat2 shapes cannot be "
                                                         "multiplied (8x10 and 12x4)")));
}

TEST(FailureOf, HasNoNumbersOfRanksAndProcesses) {
  const TemporaryFolder folder;
  const auto failure = [&](const std::string& log) { return failure_of(folder.write("log", log)); };
  const auto of_rank = [&](const std::string& rank, const std::string& process) {
    return failure("train: uncaught trireme::DataError: rank " + rank + " of 4 (process " +
                   process + ") cannot read sample 3\n  hint: fix the file\n");
  };
  EXPECT_EQ(of_rank("2", "4711"), of_rank("13", "815"));
  EXPECT_THAT(of_rank("2", "4711").text, HasSubstr("rank # of 4 (process #) cannot read sample 3"));
}

TEST(FailureOf, IsTheLastLineWhereThereIsNoException) {
  const TemporaryFolder folder;
  EXPECT_EQ(failure_of(folder.write("log", "a\nwrong shape\n")),
            failure_of(folder.write("other", "b\nwrong shape\n")));
  EXPECT_EQ(failure_of(folder.write("log", "a\nwrong shape\n")).text, "  | wrong shape\n");
  EXPECT_FALSE(failure_of(folder.write("log", "a\n")).is_exception);
  EXPECT_EQ(failure_of(folder.write("log", "")).text, "");
}

TEST(DescribeCount, KnowsThePlural) {
  EXPECT_EQ(describe_count(1, "rank"), "1 rank");
  EXPECT_EQ(describe_count(0, "rank"), "0 ranks");
}

TEST(DescribeRanks, JoinsThoseThatFollowEachOther) {
  EXPECT_EQ(describe_ranks({}), "none");
  EXPECT_EQ(describe_ranks({0, 1, 2, 3, 6}), "0-3, 6");
  EXPECT_EQ(describe_ranks({5}), "5");
}

}  // namespace
}  // namespace trireme::launch

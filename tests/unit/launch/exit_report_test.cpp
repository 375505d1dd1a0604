// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/exit_report.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>

#include <csignal>

namespace trireme::launch {
namespace {

using test::TemporaryFolder;

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
  EXPECT_EQ(last_lines(folder.write("log", line + "\n" + line + "\nend\n"), 5),
            "  | " + line + "\n  | end\n");
}

}  // namespace
}  // namespace trireme::launch

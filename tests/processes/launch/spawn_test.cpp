// SPDX-License-Identifier: Apache-2.0
// Programs that start their own workers.
#include <gmock/gmock.h>
#include <tests/processes/launch/launched.h>
#include <tests/processes/shell.h>

#include <fstream>

namespace trireme {
namespace {

using test::Launched;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = test::variable("SPAWN_PROGRAM");

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Launched starts what is called `trireme` in the folder TRIREME_BIN: here, the program that
// spawns.
class Spawn : public ::testing::Test {
 public:
  Spawn() {
    std::filesystem::create_symlink(kProgram, folder_.path() / "trireme");
    ::setenv("TRIREME_BIN", folder_.path().c_str(), 1);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
  ~Spawn() override { ::setenv("TRIREME_BIN", bin_.c_str(), 1); }

 protected:
  const std::string& trireme_bin() const { return bin_; }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  std::string bin_ = test::variable("TRIREME_BIN");
  TemporaryFolder folder_;
};

TEST_F(Spawn, RunsTheBodyInEveryWorkerWithTheSameArguments) {
  Launched program({"sum", "a b", ""});
  EXPECT_EQ(program.wait(), 0) << program.error;
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(program.output, HasSubstr("[rank " + std::string(rank) + "] rank " + rank +
                                          " of 3, sum 3, arguments <sum> <a b> <>\n"));
  }
  EXPECT_TRUE(program.is_nothing_left());
}

TEST_F(Spawn, ReturnsInTheProcessThatCalledItAlone) {
  Launched program({"sum"});
  EXPECT_EQ(program.wait(), 0) << program.error;
  EXPECT_THAT(program.output, ::testing::EndsWith("\nspawn returned 0\n"));
  EXPECT_THAT(program.output, Not(HasSubstr("] spawn returned")));
}

TEST_F(Spawn, ReturnsTheCodeOfTheWorkerThatFailedAndEndsTheOthers) {
  Launched program({"code"});
  EXPECT_EQ(program.wait(), 7);
  EXPECT_THAT(program.error, AllOf(HasSubstr("rank 1 failed first: "), HasSubstr("with code 7\n")));
  EXPECT_THAT(program.output, HasSubstr("spawn returned 7\n"));
  EXPECT_TRUE(program.is_nothing_left());
}

TEST_F(Spawn, ShowsAnExceptionWithItsRank) {
  for (const char* mode : {"throw", "torch"}) {
    Launched program({mode});
    EXPECT_EQ(program.wait(), 1);
    EXPECT_THAT(program.error,
                AllOf(HasSubstr("rank 1 failed first: "),
                      HasSubstr("  | trireme: rank 1 ended by an exception: no such sample\n"),
                      Not(HasSubstr("frame #"))));
    EXPECT_TRUE(program.is_nothing_left());
  }
}

TEST_F(Spawn, EndsWithOneWhereABodyThrowsSomethingElse) {
  Launched program({"throw number"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.error, HasSubstr("rank 1 ended by an exception that is no std::exception"));
}

TEST_F(Spawn, EndsWithOneWhereABodyReturnsWhatAProcessCannot) {
  Launched program({"large code"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.error, HasSubstr("rank 1 failed first: "));
}

TEST_F(Spawn, NamesTheSignalThatKilledAWorker) {
  Launched program({"kill"});
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_THAT(program.error,
              AllOf(HasSubstr("rank 1 failed first: "), HasSubstr("was killed by SIGKILL")));
  EXPECT_TRUE(program.is_nothing_left());
}

TEST_F(Spawn, LeavesNothingWhenTheProgramIsKilled) {
  Launched program({"hang"});
  program.await_output("ready");
  program.signal(SIGKILL);
  EXPECT_TRUE(program.await_nothing_left());
}

TEST_F(Spawn, EndsTheWorkersOnASignal) {
  Launched program({"hang"});
  program.await_output("ready");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_TRUE(program.is_nothing_left());
}

TEST_F(Spawn, RunsTheBodyOfTheCallThatStartedTheWorker) {
  Launched program({"twice"});
  EXPECT_EQ(program.wait(), 4);
  // Workers of the second call got past the first one and say so too.
  EXPECT_EQ(program.output, "the first\nbetween, after 3\nbetween, after 0\nthe second\n");
}

// The launcher's second process is a fork of the program, and used to end like one.
TEST_F(Spawn, EndsTheProgramAndItsWorkersInTheOrdinaryWayAndNothingElse) {
  const std::string path = (folder() / "ended").string();
  Launched program({"farewell", path});
  EXPECT_EQ(program.wait(), 0) << program.error;
  EXPECT_EQ(text_of(path), "bye\nbye\nbye\nbye\n");
}

TEST_F(Spawn, EndsTheProgramAloneInTheOrdinaryWayWhereNoWorkerStarts) {
  const std::filesystem::path path = folder() / "ended";
  const std::filesystem::path logs = folder() / "logs";
  std::filesystem::create_directories(logs / "rank_1.log");  // in the way
  Launched program({"farewell", path.string(), logs.string()});
  EXPECT_EQ(program.wait(), 9) << program.error;
  EXPECT_EQ(text_of(path), "bye\n");
}

// Where another host has the store.
TEST_F(Spawn, EndsTheProgramAloneInTheOrdinaryWayOnASecondNode) {
  const std::filesystem::path path = folder() / "ended";
  Launched program({"second node", path.string()});
  EXPECT_EQ(program.wait(), 1) << program.error;
  EXPECT_EQ(text_of(path), "bye\n");
}

TEST_F(Spawn, LeavesTheProgramsOtherChildrenWhenTheSupervisorIsKilled) {
  Launched program({"earlier"});
  const std::string& text = program.await_output(" end");
  const pid_t supervisor = std::stoi(text.substr(text.find("parent ") + 7));
  ASSERT_NE(supervisor, program.process());
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL) << program.error;
  EXPECT_THAT(program.output,
              HasSubstr("of earlier children, one has ended: 1, one goes on: 1, subreaper: 0\n"));
  EXPECT_TRUE(program.is_nothing_left());
}

TEST_F(Spawn, IsRefusedInsideAWorker) {
  Launched program({"nested"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.error, HasSubstr("spawn was called inside a worker, rank 1 of 3"));
}

TEST_F(Spawn, IsRefusedInAProgramThatAWorkerStarts) {
  Launched program({"below", kProgram});
  EXPECT_EQ(program.wait(), 8);
  EXPECT_THAT(program.error, HasSubstr("refused: spawn was called inside a worker, rank 1 of 3"));
}

TEST_F(Spawn, IsRefusedUnderALauncherOfSeveralRanks) {
  const test::Finished finished = test::shell("TMPDIR=" + folder().string() + " " + trireme_bin() +
                                              "/trireme run -n 2 -- " + kProgram + " sum");
  EXPECT_EQ(finished.code, 9);
  EXPECT_THAT(finished.output, HasSubstr(" of 2, which trireme has started\n"));
}

TEST_F(Spawn, WorksUnderALauncherOfOneRank) {
  const test::Finished finished = test::shell("TMPDIR=" + folder().string() + " " + trireme_bin() +
                                              "/trireme run -n 1 -- " + kProgram + " sum");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("rank 2 of 3, sum 3"));
}

TEST_F(Spawn, IsRefusedWhereThereAreThreads) {
  Launched program({"thread"});
  EXPECT_EQ(program.wait(), 9);
  EXPECT_THAT(program.error, HasSubstr("spawn was called in a process of 2 threads, expected 1"));
}

TEST_F(Spawn, RefusesToStartNothing) {
  Launched program({"none"});
  EXPECT_EQ(program.wait(), 9);
  EXPECT_THAT(program.error, HasSubstr("spawn was given 0 processes"));
}

}  // namespace
}  // namespace trireme

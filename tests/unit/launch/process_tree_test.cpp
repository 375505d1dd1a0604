// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/process_tree.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <initializer_list>

namespace trireme::launch {
namespace {

using test::TemporaryFolder;

std::string stat_line(const std::string& start, const std::string& start_time) {
  return start + " 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 " + start_time + " 0 0\n";
}

TEST(ProcessTree, ReadsNamesWithSpacesAndParentheses) {
  const TemporaryFolder proc;
  proc.write("7/stat", stat_line("7 (a) (b c)) S 3", "900"));
  const auto process = read_process("7", proc.path());
  ASSERT_TRUE(process);
  EXPECT_EQ(process->id, 7);
  EXPECT_EQ(process->name, "a) (b c)");
  EXPECT_EQ(process->state, 'S');
  EXPECT_EQ(process->parent, 3);
  EXPECT_EQ(process->start_time, 900U);
  EXPECT_FALSE(process->is_exiting);
  EXPECT_FALSE(read_process("8", proc.path()));
}

TEST(ProcessTree, KnowsAProcessThatHasBegunToEnd) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const auto process = read_process(std::to_string(child));
  ASSERT_TRUE(process);
  EXPECT_TRUE(process->is_exiting);
  EXPECT_FALSE(read_process("self")->is_exiting);
  ::waitpid(child, nullptr, 0);
}

TEST(ProcessTree, FindsDescendantsAtEveryDepthButNoZombies) {
  const TemporaryFolder proc;
  for (const char* start : {"2 (a) S 1", "3 (b) S 2", "4 (c) T 3", "5 (d) Z 2", "6 (e) S 1"}) {
    proc.write(std::string(1, *start) + "/stat", stat_line(start, "1"));
  }
  std::vector<int> found;
  for (const Process& process : descendants(2, proc.path())) found.push_back(process.id);
  EXPECT_THAT(found, testing::UnorderedElementsAre(3, 4));
}

TEST(ProcessTree, ListsChildrenAlsoThoseThatHaveEnded) {
  const TemporaryFolder proc;
  for (const char* start : {"2 (a) S 1", "3 (b) Z 1", "4 (c) S 2"}) {
    proc.write(std::string(1, *start) + "/stat", stat_line(start, "1"));
  }
  std::vector<int> found;
  for (const Process& process : children(1, proc.path())) found.push_back(process.id);
  EXPECT_THAT(found, testing::UnorderedElementsAre(2, 3));
}

TEST(ProcessTree, ListsTheChildrenOfAMainThread) {
  const TemporaryFolder proc;
  proc.write("2/task/2/children", "3 4 ");
  proc.write("3/stat", stat_line("3 (b) S 2", "1"));
  EXPECT_EQ(children_of_main_thread(2, proc.path()).size(), 1U);  // process 4 has ended meanwhile
  EXPECT_TRUE(children_of_main_thread(3, proc.path()).empty());
}

TEST(ProcessTree, ReadsTheProcessorTime) {
  const TemporaryFolder proc;
  proc.write("7/stat", "7 (a) S 3 1 1 0 -1 0 0 0 0 0 20 22 900 900 20 0 1 0 5 0 0\n");
  EXPECT_EQ(read_process("7", proc.path())->processor_ticks, 42U);
}

// Without a descriptor nothing used to be found, which looked as if nothing were there.
TEST(ProcessTree, SaysThatItCannotLookWithoutDescriptors) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{.rlim_cur = 3, .rlim_max = 3};
    ::setrlimit(RLIMIT_NOFILE, &none);
    int refused = 0;
    for (const auto& look : std::initializer_list<std::function<void()>>{
             [] { descendants(1); }, [] { children(1); }, [] { read_process("self"); },
             [] { send_signal(Process{.id = ::getpid(), .name = {}}, 0); }}) {
      try {
        look();
      } catch (const ConfigError&) {
        ++refused;
      }
    }
    ::_exit(refused);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 4);
}

TEST(ProcessTree, KnowsOurOwnParent) {
  const auto above = ancestors();
  ASSERT_FALSE(above.empty());
  EXPECT_EQ(above.front().id, ::getppid());
}

TEST(ProcessTree, SignalsOnlyTheVeryProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  auto process = read_process(std::to_string(child));
  ASSERT_TRUE(process);
  Process earlier = *process;
  earlier.start_time -= 1;
  EXPECT_FALSE(send_signal(earlier, SIGKILL));
  EXPECT_TRUE(send_signal(*process, SIGKILL));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(send_signal(*process, SIGKILL));
}

}  // namespace
}  // namespace trireme::launch

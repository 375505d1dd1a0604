// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/rank_states.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>

namespace trireme::launch {
namespace {

using std::chrono::seconds;

// A child that does this and then waits; killed at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& act) : process_(::fork()) {
    if (process_ != 0) return;
    act();
    while (true) ::pause();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  pid_t process() const { return process_; }
  void await_stop() const {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process_), &info, WSTOPPED | WNOWAIT);
  }

 private:
  pid_t process_;
};

// A single look.
std::optional<StoppedProcess> find_stopped(pid_t process) {
  TracedProcesses traced;
  return launch::find_stopped(process, traced);
}

TEST(FindStopped, NamesTheSignalThatStoppedARank) {
  const Child child([] { ::raise(SIGSTOP); });
  child.await_stop();
  const auto stopped = find_stopped(child.process());
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->id, child.process());
  EXPECT_EQ(stopped->by, "SIGSTOP");
  ::kill(child.process(), SIGCONT);
  while (find_stopped(child.process())) {
  }
}

TEST(FindStopped, FindsTheProgramBelowAWrapper) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const Child wrapper([&] {
    const pid_t program = ::fork();
    if (program == 0) {
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(program), &info, WSTOPPED | WNOWAIT);
    [[maybe_unused]] const ssize_t written = ::write(ends[1], &program, sizeof(program));
  });
  pid_t program = 0;
  ASSERT_EQ(::read(ends[0], &program, sizeof(program)), static_cast<ssize_t>(sizeof(program)));
  const auto stopped = find_stopped(wrapper.process());
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->id, program);
  EXPECT_EQ(stopped->by, "a signal");  // only its parent could say which
  ::kill(program, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(FindStopped, FindsNothingInWhatWaitsOrHasEnded) {
  const Child child([] {});
  EXPECT_FALSE(find_stopped(child.process()));
  const Child ended([] { ::_exit(0); });
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(ended.process()), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(find_stopped(ended.process()));
}

TEST(FindStopped, BelievesInADebuggerFromTheSecondLookOn) {
  const Child child([] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child.process(), &status, WUNTRACED), child.process());
  if (!WIFSTOPPED(status)) GTEST_SKIP() << "processes cannot be traced here";
  TracedProcesses traced;
  EXPECT_FALSE(launch::find_stopped(child.process(), traced)) << "it may be strace";
  std::optional<StoppedProcess> stopped;
  while (!stopped) stopped = launch::find_stopped(child.process(), traced);
  EXPECT_EQ(stopped->by, "a debugger");
}

TEST(TracedProcesses, AreNotHeldWhileTheyUseProcessorTime) {
  const TracedProcesses::Clock::time_point start{};
  TracedProcesses traced;
  EXPECT_FALSE(traced.is_held(7, 1000, start));
  EXPECT_FALSE(traced.is_held(7, 1001, start + seconds(1)));
  EXPECT_FALSE(traced.is_held(8, 1001, start + seconds(2))) << "another one";
  EXPECT_TRUE(traced.is_held(7, 1001, start + seconds(2)));
  traced.forget(7);
  EXPECT_FALSE(traced.is_held(7, 1001, start + seconds(3)));
}

TEST(Activity, CountsFromTheLastTimeThatSomethingWasDone) {
  const auto per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  const Activity::Clock::time_point start{};
  Activity activity(1000, start);
  EXPECT_EQ(activity.update(1000, start + seconds(5)), seconds(5));
  EXPECT_EQ(activity.update(1000 + per_second / 2, start + seconds(10)), seconds(0));
  EXPECT_EQ(activity.update(1000 + per_second / 2, start + seconds(14)), seconds(4));
  // A process that ended is missing in the sum.
  EXPECT_EQ(activity.update(3, start + seconds(20)), seconds(0));
  EXPECT_EQ(activity.update(3, start + seconds(21)), seconds(1));
}

TEST(Activity, TakesAThreadThatLooksAroundNowAndThenForIdle) {
  const Activity::Clock::time_point start{};
  Activity activity(0, start);
  for (int second = 1; second <= 300; ++second) {
    const auto ticks = static_cast<std::uint64_t>(second / 20);  // 10 ms in 20 s
    EXPECT_EQ(activity.update(ticks, start + seconds(second)), seconds(second));
  }
}

}  // namespace
}  // namespace trireme::launch

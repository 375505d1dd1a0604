// SPDX-License-Identifier: Apache-2.0
// A process that is asked to leave. Each test is a process of its own, because a request stays.
#include <trireme/comm/monitor/termination.h>

#include <trireme/base/leaving.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

constexpr LeaveLimits kLong{.grace = milliseconds(600'000)};

// Should a test hang.
void begin() { ::alarm(60); }

void send(Ending ending) {
  sigval value{};
  value.sival_int = static_cast<int>(ending);
  ::sigqueue(::getpid(), SIGTERM, value);
}

[[noreturn]] void wait_for_the_end() {
  while (true) ::pause();
}

[[noreturn]] void exit_by_request() {
  while (!is_asked_to_leave()) ::usleep(1'000);
  std::_Exit(who_asked_to_leave() == "SIGTERM"   ? 3
             : who_asked_to_leave() == "SIGUSR1" ? 4
             : who_asked_to_leave().empty()      ? 5
                                                 : 6);
}

TEST(Leaving, IsAskedForBySignalsAtOnce) {
  const auto by = [](int signal) {
    begin();
    start_leaving(kLong);
    if (is_asked_to_leave()) std::_Exit(1);
    ::raise(signal);
    std::_Exit(is_asked_to_leave() &&
                       who_asked_to_leave() == (signal == SIGTERM ? "SIGTERM" : "SIGUSR1")
                   ? 0
                   : 1);
  };
  EXPECT_EXIT(by(SIGTERM), ExitedWithCode(0), "");
  EXPECT_EXIT(by(SIGUSR1), ExitedWithCode(0), "");
}

TEST(Leaving, IsAskedForByTimeAndByOtherRanks) {
  const auto by_time = [] {
    begin();
    start_leaving({.grace = milliseconds(600'000), .max_time = milliseconds(1)});
    exit_by_request();
  };
  EXPECT_EXIT(by_time(), ExitedWithCode(6), "");
  const auto by_others = [] {
    begin();
    start_leaving(kLong);
    leave_with_others();
    exit_by_request();
  };
  EXPECT_EXIT(by_others(), ExitedWithCode(5), "");
}

TEST(Leaving, EndsAtASecondSigtermButNotAtThatOfItsLauncher) {
  const auto second = [] {
    begin();
    start_leaving(kLong);
    ::raise(SIGTERM);
    send(Ending::kInTime);
    send(Ending::kInTime);
    ::raise(SIGUSR1);
    std::fputs("still there\n", stderr);
    ::raise(SIGTERM);
    wait_for_the_end();
  };
  EXPECT_EXIT(second(), KilledBySignal(SIGTERM), "still there");
}

TEST(Leaving, EndsNowIfAnotherRankHasFailed) {
  const auto fail = [](bool was_asked) {
    begin();
    start_leaving(kLong);
    if (was_asked) ::raise(SIGTERM);
    send(Ending::kNow);
    wait_for_the_end();
  };
  EXPECT_EXIT(fail(false), KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(fail(true), KilledBySignal(SIGTERM), "");
}

TEST(Leaving, SaysThatItsGraceWasTooShort) {
  const auto end = [](const std::string& saved) {
    begin();
    start_leaving({.grace = milliseconds(1)});
    if (!saved.empty()) note_saved(saved);
    ::raise(SIGUSR1);
    wait_for_the_end();
  };
  EXPECT_EXIT(end(""), KilledBySignal(SIGTERM),
              "was asked to leave by SIGUSR1 and is not done after 0.001 s: it ends without a new "
              "checkpoint. No checkpoint of this run is complete. hint: ");
  EXPECT_EXIT(end("runs/demo-1_5"), KilledBySignal(SIGTERM),
              "The newest complete checkpoint is runs/demo-1_5");
}

TEST(Leaving, EndsByDefaultWhereNobodyListens) {
  const auto end = [] {
    begin();
    start_leaving(kLong);
    stop_leaving();
    ::raise(SIGTERM);
    wait_for_the_end();
  };
  EXPECT_EXIT(end(), KilledBySignal(SIGTERM), "");
}

TEST(Leaving, IsNotForSignalsThatTheProgramHandlesOrIgnores) {
  const auto ignore = [] {
    begin();
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGUSR1, [](int) { std::_Exit(7); });
    start_leaving(kLong);
    ::raise(SIGTERM);
    if (!is_asked_to_leave()) ::raise(SIGUSR1);
  };
  EXPECT_EXIT(ignore(), ExitedWithCode(7), "");
}

}  // namespace
}  // namespace trireme::comm

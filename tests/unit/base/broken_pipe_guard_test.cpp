// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/broken_pipe_guard.h>

#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

namespace trireme {
namespace {

// Writes to a pipe without a reader. Returns the error number.
int write_to_closed_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  reader.reset();
  const char byte = 0;
  return ::write(writer.get(), &byte, 1) < 0 ? errno : 0;
}

bool is_blocked() {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return ::sigismember(&now, SIGPIPE) == 1;
}

bool is_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, SIGPIPE) == 1;
}

TEST(BrokenPipeGuard, TurnsTheSignalIntoAnError) {
  {
    const BrokenPipeGuard guard;
    EXPECT_EQ(write_to_closed_pipe(), EPIPE);
  }
  EXPECT_FALSE(is_blocked());
  EXPECT_FALSE(is_pending());
}

TEST(BrokenPipeGuard, HoldsForThreadsThatAreStartedMeanwhile) {
  int error = 0;
  std::thread thread;
  {
    const BrokenPipeGuard guard;
    thread = std::thread([&error] { error = write_to_closed_pipe(); });
  }
  thread.join();
  EXPECT_EQ(error, EPIPE);
}

TEST(BrokenPipeGuard, KeepsASignalThatWasPendingBefore) {
  const BrokenPipeGuard outer;
  ::raise(SIGPIPE);
  {
    const BrokenPipeGuard inner;
    write_to_closed_pipe();
  }
  EXPECT_TRUE(is_blocked());
  EXPECT_TRUE(is_pending());
}

}  // namespace
}  // namespace trireme

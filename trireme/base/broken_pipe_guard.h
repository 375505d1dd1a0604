// SPDX-License-Identifier: Apache-2.0
// Turns SIGPIPE into an error code, for libraries that write to sockets without MSG_NOSIGNAL. In a
// C++ program the signal ends the process. Python ignores it.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace trireme {

/// Blocks SIGPIPE on the calling thread during its lifetime, and discards one that a write of this
/// thread raised. Threads that are started meanwhile keep it blocked for ever. A write to a closed
/// connection then fails with EPIPE. Must be used on one thread only.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&broken_pipe_);
    ::sigaddset(&broken_pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;
  ~BrokenPipeGuard() {
    const timespec at_once{};
    if (!was_pending_) ::sigtimedwait(&broken_pipe_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t broken_pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace trireme

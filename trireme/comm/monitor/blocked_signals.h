// SPDX-License-Identifier: Apache-2.0
// Threads of the library take no signals: the program's handlers run on the program's threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace trireme::comm {

/// Blocks all signals of the calling thread while it lives; threads started meanwhile keep them
/// blocked. Not thread-safe: of one thread.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// BlockedSignals: keeps signals away from the threads of the library, so that handlers of the
// program run on threads of the program.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace trireme::comm {

/// Blocks all signals of the calling thread during its lifetime. Threads that are started meanwhile
/// keep them blocked. Must be used on one thread only.
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

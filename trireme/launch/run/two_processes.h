// SPDX-License-Identifier: Apache-2.0
// Splits the launcher into two processes that watch each other. The front process is what the user
// sees and signals; the supervisor has the ranks below it. If either is killed, the other one ends
// all that is left. docs/decisions/0001-two-process-launcher.md gives the reasons.
#pragma once

#include <trireme/base/unique_fd.h>

#include <csignal>
#include <functional>

namespace trireme::launch {

/// The data that the supervisor gets at its start. Signals in `blocked` reach it through a
/// signalfd.
struct SupervisorSetting {
  /// A pipe that reaches its end when the front process is gone.
  UniqueFd front;
  /// The signals that the launcher handles, which are blocked.
  sigset_t blocked{};
  /// The signal mask for the ranks.
  sigset_t original_mask{};
};

/// Returns the signals that the launcher handles. Signals that were ignored when it started are
/// left out: SIGHUP under nohup, and SIGINT and SIGQUIT for a background job.
sigset_t handled_signals();

/// Forks, calls `supervise` in the new process, and returns its exit code. Forwards signals to it
/// meanwhile. If `supervise` throws, throws ConfigError with the same message. If the supervisor is
/// killed, kills all its descendants and returns 128 plus the signal. Other children of this
/// process are left alone.
int run_in_two_processes(const std::function<int(SupervisorSetting)>& supervise);

}  // namespace trireme::launch

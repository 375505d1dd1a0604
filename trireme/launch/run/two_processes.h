// SPDX-License-Identifier: Apache-2.0
// Two processes that watch each other: the front one, which the user sees and signals, and the
// supervisor, which has the ranks below it. Whichever is killed, the other ends all that is left.
// docs/decisions/0001-two-process-launcher.md has the reasons.
#pragma once

#include <trireme/base/unique_fd.h>

#include <csignal>
#include <functional>

namespace trireme::launch {

/// What the supervisor finds when it starts. Signals in `blocked` reach it through a signalfd.
struct SupervisorSetting {
  /// Comes to its end when the front process is gone.
  UniqueFd front;
  sigset_t blocked{};
  /// For the ranks.
  sigset_t original_mask{};
};

/// Signals that the launcher acts upon. Not those that whoever started it had it ignore: SIGHUP
/// under nohup, SIGINT and SIGQUIT for a job in the background.
sigset_t handled_signals();

/// Forks; calls `supervise` in the new process, whose exit code it returns, and meanwhile passes
/// signals on. If `supervise` throws, this throws ConfigError with the same message. If the
/// supervisor is killed, kills everything below it and returns 128 plus the signal; other children
/// of this process are left to it.
int run_in_two_processes(const std::function<int(SupervisorSetting)>& supervise);

}  // namespace trireme::launch

// SPDX-License-Identifier: Apache-2.0
// Determines from /proc if a running rank is stopped, and if the remaining ranks still work.
#pragma once

#include <trireme/base/traced_processes.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::launch {

/// A process that is stopped and waits to be continued.
struct StoppedProcess {
  int id = 0;  ///< the process id
  /// What stopped it: a signal such as `SIGSTOP`, `a signal` if it is unknown, or `a debugger`.
  std::string by;
  bool is_traced = false;  ///< true if a debugger stopped it
};

/// Returns the stopped process of a rank, if any: `process` itself or a descendant, because a
/// wrapper may start the program. Reads two small files per process. A process that a tracer has
/// stopped counts only from the second observation on, because strace stops processes for a moment
/// at each system call.
/// @param process the process id of the rank.
/// @param traced what earlier calls for this rank have observed.
std::optional<StoppedProcess> find_stopped(pid_t process, TracedProcesses& traced);

/// Measures for how long processes have been idle. Idle means less than one hundredth of one core,
/// so that threads which wake up periodically do not count.
class Activity {
 public:
  /// The clock of observations.
  using Clock = std::chrono::steady_clock;

  /// Starts measuring at `now`.
  /// @param ticks the processor time at `now`, counted from any origin.
  /// @param now the current time.
  Activity(std::uint64_t ticks, Clock::time_point now) : ticks_(ticks), since_(now) {}

  /// Returns the time that the processes have been idle.
  /// @param ticks their processor time at `now`.
  /// @param now the current time.
  Clock::duration update(std::uint64_t ticks, Clock::time_point now);

 private:
  std::uint64_t ticks_;
  Clock::time_point since_;
};

}  // namespace trireme::launch

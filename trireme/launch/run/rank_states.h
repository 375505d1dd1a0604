// SPDX-License-Identifier: Apache-2.0
// What /proc shows of ranks that run: whether one is stopped, and whether those that are left still
// work.
#pragma once

#include <trireme/base/traced_processes.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::launch {

/// A process that does not go on until somebody lets it.
struct StoppedProcess {
  int id = 0;
  /// `SIGSTOP`, `a signal` or `a debugger`.
  std::string by;
};

/// Returns the process of a rank that is stopped: `process` itself or one that it started, as a
/// wrapper starts the program. Costs two small files for each. `traced` is what earlier looks at
/// this rank have seen: a process that a tracer stops counts from the second look on, for strace
/// stops one for a moment at each system call.
std::optional<StoppedProcess> find_stopped(pid_t process, TracedProcesses& traced);

/// Tells for how long processes have done next to nothing: less than one hundredth of one core,
/// which leaves out threads that only look around now and then.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param ticks processor time now, from anywhere on.
  Activity(std::uint64_t ticks, Clock::time_point now) : ticks_(ticks), since_(now) {}

  /// Returns for how long they have been idle, with `ticks` of processor time by `now`.
  Clock::duration update(std::uint64_t ticks, Clock::time_point now);

 private:
  std::uint64_t ticks_;
  Clock::time_point since_;
};

}  // namespace trireme::launch

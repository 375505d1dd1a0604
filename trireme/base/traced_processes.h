// SPDX-License-Identifier: Apache-2.0
// Detects processes that a debugger has stopped. The state `t` in /proc is not enough: strace also
// stops a process, for a moment at each system call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

namespace trireme {

/// Remembers what was seen of processes that are observed repeatedly. Not thread-safe.
class TracedProcesses {
 public:
  /// The clock of observations.
  using Clock = std::chrono::steady_clock;

  /// Records an observation of a process in state `t` (stopped by a tracer). Returns true if the
  /// process has used no processor time since an observation at least 0.1 s earlier.
  /// @param process the process id.
  /// @param ticks the processor time that the process has used so far.
  /// @param now the time of the observation.
  bool is_held(std::int64_t process, std::uint64_t ticks, Clock::time_point now = Clock::now()) {
    const auto [place, is_first] = seen_.try_emplace(process, Seen{ticks, now});
    if (!is_first && place->second.ticks != ticks) place->second = {ticks, now};
    return now - place->second.since >= std::chrono::milliseconds(100);
  }

  /// Records an observation of a process in any other state, which ends the time that it stood
  /// still.
  void forget(std::int64_t process) { seen_.erase(process); }

 private:
  struct Seen {
    std::uint64_t ticks = 0;
    Clock::time_point since;
  };
  std::map<std::int64_t, Seen> seen_;
};

}  // namespace trireme

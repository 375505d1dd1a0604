// SPDX-License-Identifier: Apache-2.0
// Which processes a debugger holds. The state `t` of /proc alone does not tell: strace, too, stops
// a process, for a moment at each system call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

namespace trireme {

/// What somebody who looks at processes again and again has seen of them. Not thread-safe.
class TracedProcesses {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes note of a look at a process that a tracer has stopped (state `t`), which has used
  /// `ticks` of processor time so far. Returns whether it has stood still since an earlier look, a
  /// tenth of a second ago or more.
  bool is_held(std::int64_t process, std::uint64_t ticks, Clock::time_point now = Clock::now()) {
    const auto [place, is_first] = seen_.try_emplace(process, Seen{ticks, now});
    if (!is_first && place->second.ticks != ticks) place->second = {ticks, now};
    return now - place->second.since >= std::chrono::milliseconds(100);
  }

  /// Takes note of a look at a process in any other state.
  void forget(std::int64_t process) { seen_.erase(process); }

 private:
  struct Seen {
    std::uint64_t ticks = 0;
    Clock::time_point since;
  };
  std::map<std::int64_t, Seen> seen_;
};

}  // namespace trireme

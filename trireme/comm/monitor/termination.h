// SPDX-License-Identifier: Apache-2.0
// What this process does when it is asked to end: it writes dumps and ends, or it leaves in time
// (comm/leaving.h), within a grace.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trireme::comm {

/// Makes SIGTERM run `write` on a thread of its own before it ends this process. Does nothing if
/// the program handles or ignores SIGTERM. A second SIGTERM ends the process at once. Only the
/// first call has an effect. A forked child ends without running `write`.
void dump_at_termination(void (*write)());

struct LeaveLimits {
  /// The time after a request in which this process must have ended. Then it says so, writes dumps
  /// and ends by SIGTERM.
  std::chrono::milliseconds grace{};
  /// The time since this process has started after which it is asked to leave.
  std::optional<std::chrono::milliseconds> max_time{};
};

/// From now on, SIGTERM, SIGUSR1 and the end of the running time ask this process to leave instead
/// of ending it, as long as there are more calls of this function than of `stop_leaving`. A signal
/// that the program handles or ignores is left alone. The limits of the last call count. A SIGTERM
/// by which a launcher ends this process because another rank failed (Ending::kNow) still ends it.
void start_leaving(const LeaveLimits& limits);

/// Ends the effect of one `start_leaving`. SIGTERM ends the process again. A request that has been
/// made stays, and so does its grace.
void stop_leaving() noexcept;

/// Counts as a request, made by another rank. Called where all ranks have agreed to leave.
void leave_with_others() noexcept;

/// Returns whether this process has been asked to leave. May be called by any thread.
bool is_asked_to_leave() noexcept;

/// Returns what has asked: `SIGTERM`, `SIGUSR1` or `the end of the running time of 60 s`; empty if
/// nothing has asked this rank itself.
std::string who_asked_to_leave();

/// Notes the checkpoint that a process which has no time left names as the one to resume from.
void note_saved(const std::string& checkpoint);

}  // namespace trireme::comm

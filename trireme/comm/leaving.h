// SPDX-License-Identifier: Apache-2.0
// Leaving: lets a loop that is written by hand end in time when its process is asked to: by
// SIGTERM, SIGUSR1 or the end of its running time. A Model does the same by itself.
#pragma once

#include <trireme/base/leaving.h>
#include <trireme/comm/group.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// Settings of Leaving.
struct LeaveOptions {
  /// The time from a request until the process must have ended. Default: TRIREME_GRACE in seconds,
  /// or 30 s. A process that is not done then writes why, and SIGTERM ends it.
  std::optional<std::chrono::milliseconds> grace{};
  /// The running time of the process after which it leaves. Default: TRIREME_MAX_TIME in seconds,
  /// or none.
  std::optional<std::chrono::milliseconds> max_time{};
  /// The ranks ask each other in every n-th call of is_requested(), at least 1. Equal on all ranks.
  std::int64_t every = 1;
};

/// Makes requests to end a process known to all ranks at the same place of their loops. During the
/// lifetime of an object, SIGTERM and SIGUSR1 no longer end this process: is_requested() reports
/// them. A second SIGTERM ends it at once. Signals that the program handles or ignores itself are
/// left alone. Not thread-safe.
///
///     trireme::Leaving leaving(world.group);
///     for (std::int64_t step = first; step < steps; ++step) {
///       train_step();
///       if (leaving.is_requested()) return leaving.finish(save_all(step));  // the exit code, 75
///     }
class Leaving {
 public:
  /// Begins to listen.
  /// @param group the ranks that leave together. All of them make an object.
  /// @throws ConfigError for a variable outside its range, and if no thread can be started.
  /// @throws UsageError for options that are not allowed, and for an empty group in one of several
  /// ranks.
  explicit Leaving(const comm::Group& group = {}, const LeaveOptions& options = {});
  ~Leaving();
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  /// Returns true on all ranks if any of them was asked to leave. Once true, it stays true.
  /// Collective and blocking, in every n-th call (LeaveOptions::every); false in the others.
  /// Throws CommError like every collective.
  bool is_requested();

  /// Returns what this rank knows of the request, such as `SIGTERM`; `another rank` if it has none
  /// itself. Empty before a request.
  std::string reason() const;

  /// Waits until all ranks are here, so that none leaves before the others have saved. Rank 0 then
  /// writes to standard error what was saved. Returns the code to exit with, kLeaveExitCode.
  /// Collective and blocking.
  /// @param saved the checkpoint, on rank 0.
  int finish(const std::filesystem::path& saved);

 private:
  comm::Group group_;
  std::int64_t every_;
  std::int64_t calls_ = 0;
  bool is_requested_ = false;
};

namespace comm {

/// Starts to listen to requests to leave (monitor/termination.h), with the limits of `options` and
/// the environment. Throws like Leaving.
void listen_to_requests(const LeaveOptions& options);

/// Writes to standard error that a run was asked to leave and has saved.
void tell_of_leaving(const std::string& reason, const std::filesystem::path& saved);

}  // namespace comm
}  // namespace trireme

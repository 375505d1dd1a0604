// SPDX-License-Identifier: Apache-2.0
// Runs the store of a run in a process of its own below the supervisor. The supervisor stays
// responsive whatever happens there: a start that waits for a network, clients that use up
// descriptors, or memory that runs out. docs/decisions/0010-the-store-is-a-process.md gives the
// reasons.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run.h>

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The supervisor's access to the store's process. No call blocks. Not thread-safe.
class StoreProcess {
 public:
  /// A message from the store's process.
  struct Report {
    /// The kinds of messages.
    enum class Kind {
      kOpen,       ///< clients are served, or the store of another host was joined
      kFailed,     ///< the store could not be opened, as `text` says; the process ends
      kComplaint,  ///< `text` is a message for people
      kUsed,       ///< the answer to `finish`: ranks have written to the store
      kUnused,     ///< the answer to `finish`: no rank has written to the store
    };
    Kind kind;         ///< the kind of message
    std::string text;  ///< for kFailed and kComplaint
  };

  /// Forks; the caller must have only one thread. The new process opens the store, and the
  /// listening socket of `place` is closed in this process. The kernel kills the new process when
  /// the calling thread ends. Throws ConfigError if the process cannot be started.
  StoreProcess(const StoreOpener& open, StoreAddress place);

  /// Returns the process id of the store's process.
  pid_t id() const { return process_; }
  /// Returns the descriptor to poll. It is readable if there is a report or the process has ended.
  /// While wants_to_write() is true, it must be polled for writing as well.
  int fd() const { return channel_.get(); }
  /// Returns true if packets wait to be sent.
  bool wants_to_write() const { return !unsent_.empty(); }
  /// Returns true if a report has said that the store is open.
  bool is_open() const { return is_open_; }
  /// Returns true if the process has ended, as seen by receive().
  bool is_closed() const { return is_closed_; }

  /// Publishes that a rank has ended and how.
  void publish_exit(int rank, std::string_view how);

  /// Requests a final report, after which the process ends.
  /// @param linger_ms the time in milliseconds for which the store stays available to ranks of
  /// other hosts.
  void finish(int linger_ms);

  /// Sends packets that could not be sent before.
  void flush();
  /// Returns the next report, or std::nullopt if there is none yet or no more can come.
  std::optional<Report> receive();

 private:
  UniqueFd channel_;
  pid_t process_ = -1;
  bool is_open_ = false;
  bool is_closed_ = false;
  std::deque<std::string> unsent_;
};

}  // namespace trireme::launch

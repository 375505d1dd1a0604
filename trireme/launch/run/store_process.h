// SPDX-License-Identifier: Apache-2.0
// The store of a run in a process of its own below the supervisor, which therefore goes on
// listening whatever happens there: a start that waits for a network that is down, clients that use
// up its descriptors, memory that runs out. docs/decisions/0010-the-store-is-a-process.md.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run.h>

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The supervisor's end. No call blocks. Not thread-safe.
class StoreProcess {
 public:
  /// Something that the store has to say.
  struct Report {
    enum class Kind {
      kOpen,       ///< clients are served, or the store of another host was joined
      kFailed,     ///< it could not be opened, `text` says why; the process ends
      kComplaint,  ///< `text` for people
      kUsed,       ///< after `finish`: ranks have written into it
      kUnused,     ///< after `finish`: nobody has
    };
    Kind kind;
    std::string text;
  };

  /// Forks; the caller must have one thread. The new process closes the place's socket here, opens
  /// the store there, and is killed when the calling thread ends. Throws ConfigError.
  StoreProcess(const StoreOpener& open, StoreAddress place);

  pid_t id() const { return process_; }
  /// Readable when there is a report, or the process has ended; to be watched for writing too while
  /// `wants_to_write`.
  int fd() const { return channel_.get(); }
  bool wants_to_write() const { return !unsent_.empty(); }
  /// Whether the store is there, as far as was received.
  bool is_open() const { return is_open_; }
  /// Whether it has ended, as far as was received.
  bool is_closed() const { return is_closed_; }

  void publish_exit(int rank, std::string_view how);

  /// Asks for a last report, after which the process ends.
  /// @param linger_ms how long the store is still to be there for ranks of other hosts.
  void finish(int linger_ms);

  /// Sends what could not be sent before.
  void flush();
  /// Returns the next report; nothing where none is there yet, or no more can come.
  std::optional<Report> receive();

 private:
  UniqueFd channel_;
  pid_t process_ = -1;
  bool is_open_ = false;
  bool is_closed_ = false;
  std::deque<std::string> unsent_;
};

}  // namespace trireme::launch

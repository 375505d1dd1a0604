// SPDX-License-Identifier: Apache-2.0
// A worker's connection to its scheduler: finds the scheduler, introduces the worker, waits for its
// place in the world, and stays open until the worker ends.
#pragma once

#include <trireme/launch/role.h>
#include <trireme/launch/scheduler/channel.h>
#include <trireme/launch/scheduler/messages.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// What a worker says about itself, and where its scheduler is.
struct WorkerOptions {
  HostAndPort scheduler;         ///< the address of the scheduler
  std::string secret{};          ///< the secret of the run; empty if there is none
  int ranks = 1;                 ///< the number of ranks that the worker stands for
  std::optional<int> workers{};  ///< the number of ranks that the worker expects in the world
  std::string node_id{};         ///< the name of the worker; empty if it has none
  std::string run{};             ///< the run in which the worker had a place; empty if it is new
  Program program;               ///< the program of the ranks
  /// The files for TLS. Without them, the connection is not encrypted.
  std::optional<TlsFiles> tls{};
  /// The time after which the scheduler must have been reached.
  std::chrono::milliseconds timeout{std::chrono::seconds{300}};
};

/// The connection of a worker that has a place in the world. Not thread-safe.
class WorkerConnection {
 public:
  /// Connects, and blocks until the world is complete. Tries again until the timeout if nobody
  /// listens, because workers may start before the scheduler. After that, the scheduler's deadline
  /// counts. Throws CommError if the scheduler cannot be reached or the world is not complete in
  /// time. Throws ConfigError if the files for TLS cannot be used, one side encrypts and the other
  /// one does not, one does not trust the other one, or the scheduler refuses the worker.
  explicit WorkerConnection(const WorkerOptions& options);

  /// Returns the place of the worker.
  const Assignment& place() const { return place_; }
  /// Returns the address of the scheduler.
  const HostAndPort& scheduler() const { return scheduler_; }
  /// Returns the descriptor that is readable if receive() may have something to return.
  int fd() const { return channel_.fd(); }

  /// Returns the scheduler's request to end, or std::nullopt if there is none. If the connection is
  /// lost, returns a request that says so. Does not block.
  std::optional<EndRequest> receive();
  /// Closes the connection, for all processes that have a copy of it.
  void leave();
  /// Says that a rank has ended. Blocks for a second at most.
  void say_ended(const RankEnded& end);
  /// Tells what ranks have reported. Does not block, and leaves it out if earlier messages still
  /// wait to be sent.
  void say_progress(const std::vector<RankProgress>& ranks);

 private:
  enum class Step { kPlaced, kTryAgain };

  Step join(const WorkerOptions& options, std::string& problem);
  bool await_message(std::chrono::steady_clock::time_point until, std::string& message);
  void answer_challenge(const WorkerOptions& options, const std::string& message);
  [[noreturn]] void refuse_encryption() const;

  HostAndPort scheduler_;
  std::chrono::steady_clock::time_point deadline_;
  Channel channel_;
  Assignment place_;
};

}  // namespace trireme::launch

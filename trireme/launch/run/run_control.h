// SPDX-License-Identifier: Apache-2.0
// The part of a run on this host in the world of a scheduler: its place there, and a connection by
// which it says how its ranks ended and is told to end.
#pragma once

#include <trireme/launch/status/progress_board.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// The place of the ranks of this host in a world that a scheduler has formed.
struct RunPlace {
  int first_rank = 0;           ///< the first rank of this run
  int world_size = 1;           ///< the number of ranks in the world
  int first_local_rank = 0;     ///< the first local rank of this run
  int local_world_size = 1;     ///< the number of ranks on this host, including those of other runs
  int node_rank = 0;            ///< the number of this host
  int nodes = 1;                ///< the number of hosts
  std::string store_address{};  ///< the host at which the store is reached
  int store_port = 0;           ///< the port of the store
  std::string run_id{};         ///< the name of the run
  std::string secret{};         ///< the secret of the run, if the scheduler has given one
  int restart = 0;              ///< the number of times that the ranks have been started again
  int restarts = 0;             ///< the number of times that they may be
};

/// A request to end all ranks of this run.
struct StopOrder {
  std::string reason{};   ///< why, for people
  int code = 1;           ///< the exit code of the run
  bool restarts = false;  ///< true if the scheduler forms the world anew afterwards
};

/// A rank of this run that has ended.
struct EndedRank {
  int rank = 0;            ///< the rank in the world
  int process = 0;         ///< its process id
  int code = 0;            ///< its exit code, or 128 plus the signal that ended it or the run
  std::string how{};       ///< the same in words, such as `exited with code 3`
  std::string log{};       ///< the path of its log
  FailureReport report{};  ///< what it has reported of its failure
};

/// A run's connection to its scheduler. Not thread-safe.
class RunControl {
 public:
  RunControl() = default;
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;
  virtual ~RunControl() = default;

  /// Returns the descriptor that is readable if receive() may have something to return.
  virtual int fd() const = 0;
  /// Returns a request to end, which also comes if the scheduler is gone, or std::nullopt. Does not
  /// block.
  virtual std::optional<StopOrder> receive() = 0;
  /// Closes the connection. The other methods may not be called afterwards.
  virtual void leave() = 0;
  /// Says of `count` ranks from `first` on that they could not be run, and why.
  void could_not_run(int first, int count, const std::string& reason);
  /// Says that a rank has ended. Blocks for a second at most.
  virtual void rank_ended(const EndedRank& rank) = 0;
  /// Tells what ranks have reported. Never blocks; leaves it out if the connection is congested.
  virtual void progress(const std::vector<RankProgress>& ranks) = 0;
};

}  // namespace trireme::launch

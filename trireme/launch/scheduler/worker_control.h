// SPDX-License-Identifier: Apache-2.0
// Connects the supervisor of `trireme worker` with the scheduler.
#pragma once

#include <trireme/launch/run/run_control.h>
#include <trireme/launch/scheduler/worker_connection.h>

#include <vector>

namespace trireme::launch {

/// Returns the place of the ranks of a worker as a run knows it.
RunPlace place_of(const WorkerConnection& connection);

/// Forwards the ends of ranks to the scheduler, and its requests to the run. Not thread-safe.
class WorkerControl : public RunControl {
 public:
  /// Takes over the connection.
  explicit WorkerControl(WorkerConnection connection);

  int fd() const override { return connection_.fd(); }
  std::optional<StopOrder> receive() override;
  void leave() override { connection_.leave(); }
  void rank_ended(const EndedRank& rank) override;
  void progress(const std::vector<RankProgress>& ranks) override {
    connection_.say_progress(ranks);
  }

 private:
  WorkerConnection connection_;
};

}  // namespace trireme::launch

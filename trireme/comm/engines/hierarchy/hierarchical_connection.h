// SPDX-License-Identifier: Apache-2.0
// An engine composed of others: one inside each host, one between the leaders of hosts, and one
// over all ranks.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/adapter/worker.h>
#include <trireme/comm/engines/hierarchy/host_map.h>
#include <trireme/comm/engines/hierarchy/phases.h>

#include <memory>
#include <mutex>
#include <string>

namespace trireme::comm {

/// Composes backends over hosts. Collectives run in the order of the calls on a thread of this
/// connection, so a call returns at once. A send or receive goes directly to the backend that
/// connects the two ranks.
/// If a phase fails, the error of the collective names it, and every later call fails at once. The
/// connections are closed then. So ranks that wait for this one notice, if their engine notices
/// closed connections.
class HierarchicalConnection final : public EngineConnection {
 public:
  /// Settings of the connection.
  struct Options {
    std::string name = "hierarchy";  ///< such as `shm+gloo`
    /// Messages with fewer bytes are carried by one leader, because latency matters more than
    /// bandwidth for them.
    std::int64_t one_leader_below = 32'768;
    /// True to send messages inside a host over the backend of all ranks too. Receiving from any
    /// rank needs that, and messages inside a host are slower.
    bool receive_from_any = false;
  };

  /// Takes over the connections. Not collective. Throws UsageError if the rank or size of a
  /// connection does not fit its part.
  HierarchicalConnection(int rank, HostMap hosts, HierarchyConnections connections,
                         const Options& options);
  ~HierarchicalConnection() override;

  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  void abort(const std::string& reason) override;

 private:
  WorkPtr submit_message(Operation operation);
  void run(const c10::intrusive_ptr<PhasedOperation>& work);
  HierarchyConnections connections_or_throw();
  HierarchyConnections break_down(const std::string& reason);
  std::string describe(Phase phase) const;
  void check_connection(const char* which, const c10::intrusive_ptr<c10d::Backend>& connection,
                        int rank, std::size_t size) const;

  const HostMap hosts_;
  const Options options_;
  const std::string inside_name_;
  const std::string across_name_;
  const std::string flat_name_;
  Scratch scratch_;  // used by the worker only

  std::mutex mutex_;
  HierarchyConnections connections_;  // guarded by mutex_
  std::string broken_;                // guarded by mutex_; the reason, or empty
  std::unique_ptr<Worker> worker_;    // last, so that it ends first
};

}  // namespace trireme::comm

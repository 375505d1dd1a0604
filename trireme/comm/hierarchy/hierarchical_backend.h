// SPDX-License-Identifier: Apache-2.0
// A c10d backend made of others: one inside each host, one for each leader across hosts, one over
// all ranks.
#pragma once

#include <trireme/comm/hierarchy/host_map.h>
#include <trireme/comm/hierarchy/phases.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::comm {

/// Composes backends over hosts. Collectives run in the order of the calls on a thread of this
/// backend, so a call returns at once; send and receive go straight to the backend that joins the
/// two ranks. CPU tensors of any strides. When a phase fails, the collective's error names it,
/// every later call fails at once, and the connections are closed, so that ranks which wait for
/// this one learn it if their engine notices closed connections.
///
/// Thread-safe like any c10d backend: collectives must be called in the same order on all ranks.
class HierarchicalBackend : public c10d::Backend {
 public:
  struct Options {
    std::string name = "hierarchy";       ///< as a c10d backend, such as `shm+gloo`
    std::chrono::milliseconds timeout{};  ///< of a collective, where the call gives none
    /// Messages of fewer bytes cross by one leader: latency counts there, not bandwidth.
    std::int64_t one_leader_below = 32'768;
    /// Sends messages inside a host over the backend of all ranks too, which recvAnysource needs;
    /// they are slower there.
    bool receive_from_any = false;
  };

  /// Takes over the connections; not collective. Throws UsageError where a connection's rank or
  /// size does not fit its part.
  HierarchicalBackend(int rank, HostMap hosts, HierarchyConnections connections, Options options);
  ~HierarchicalBackend() override;

  const HostMap& hosts() const noexcept { return hosts_; }

  const std::string getBackendName() const override { return options_.name; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // counts from 1 on every rank
  uint64_t getSequenceNumberForGroup() override;
  void abort() override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  using Body = std::function<void(Phases&)>;

  WorkPtr submit(c10d::OpType type, const char* operation, Tensors outputs,
                 std::chrono::milliseconds timeout, Body body);
  void run(const c10::intrusive_ptr<PhasedWork>& work, const Body& body);
  HierarchyConnections connections_or_throw();
  HierarchyConnections break_down(const std::string& reason);
  std::string describe(Phase phase) const;
  int check_peer(int peer, const char* operation) const;
  int check_root(std::int64_t root, const char* operation) const;
  void check_connection(const char* which, const c10::intrusive_ptr<c10d::Backend>& connection,
                        int rank, std::size_t size) const;

  const HostMap hosts_;
  const Options options_;
  const std::string inside_name_;
  const std::string across_name_;
  const std::string flat_name_;
  Scratch scratch_;  // the worker's

  std::mutex mutex_;
  HierarchyConnections connections_;   // guarded by mutex_
  std::string broken_;                 // guarded by mutex_; why, or empty
  std::chrono::milliseconds timeout_;  // guarded by mutex_
  std::uint64_t sequence_number_ = 0;  // guarded by mutex_
  std::unique_ptr<Worker> worker_;     // last made, first ended
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// The c10d::Backend that process groups of Python hold. It passes collectives to the engine of a
// group, and adds what torch.distributed offers with Gloo beyond that: sparse all-reduce, monitored
// barriers, groups split off, and shutdown.
#pragma once

#include <python/native/connect.h>
#include <python/native/gloo_checks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::python {

/// Thread-safety: that of the engine's backend (comm/adapter/adapter_backend.h). Calls that wait
/// must be made without the GIL, as torch's bindings do. `shutdown` and the destructor release it.
class ProcessGroupBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Connects the ranks (connect_group).
  explicit ProcessGroupBackend(GroupRequest request);
  ~ProcessGroupBackend() override;

  /// Returns the name of the engine, such as `shm`; `none` after shutdown.
  std::string engine();

  const std::string getBackendName() const override { return "trireme"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // counts from 1 on every rank
  std::uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  /// Ends the group on all ranks: calls that wait and later calls throw CommError.
  void abort() override;
  /// Waits for the operations that were started, then closes the connection. Later calls throw
  /// UsageError.
  void shutdown() override;

  bool supportsSplitting() const override { return true; }
  /// Returns a backend of some ranks of this group; null if this rank is not among them.
  /// Collective over these ranks.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;

  bool supportsCoalescing() const override { return supports_coalescing_; }
  void startCoalescing() override { open()->startCoalescing(); }
  WorkPtr endCoalescing() override { return open()->endCoalescing(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
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
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waits_for_all) override;

 private:
  CallSite site() const noexcept { return {.rank = getRank(), .size = getSize()}; }
  // Returns the backend of the engine. Throws UsageError after shutdown.
  c10::intrusive_ptr<Backend> open();

  const GroupRequest request_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;  // guards group_ and is_closed_
  comm::Group group_;
  const bool supports_coalescing_;
  bool is_closed_ = false;
  std::atomic<std::uint64_t> num_monitored_barriers_ = 0;
};

}  // namespace trireme::python

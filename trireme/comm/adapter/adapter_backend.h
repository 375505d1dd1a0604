// SPDX-License-Identifier: Apache-2.0
// The c10d::Backend of all engines of Trireme, for code that uses the interface of c10d
// (ProcessGroup, functional collectives). Group calls the engine directly instead.
#pragma once

#include <trireme/comm/adapter/arguments.h>
#include <trireme/comm/adapter/engine_connection.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::comm {

/// Accepts tensors of any strides and dtype, and copies those that the engine cannot use directly.
/// A call starts an operation and returns its work. If `asyncOp` in the options is false, it blocks
/// until the operation is done and returns null, as ProcessGroupNCCL does: for small tensors a work
/// costs more than the operation. Between startCoalescing and endCoalescing all calls return works.
/// Wrong arguments throw UsageError before anything is sent. Later failures are thrown by
/// Work::wait, or by the call that blocks.
/// Thread-safety: safe, with two limits. All ranks must start collectives in the same order, and
/// coalescing belongs to one thread.
class AdapterBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// @param timeout the deadline of operations that have none of their own.
  AdapterBackend(std::shared_ptr<EngineConnection> connection, std::chrono::milliseconds timeout);
  ~AdapterBackend() override;

  EngineConnection& connection() const noexcept { return *connection_; }
  /// Sets what stands before the colon in the titles of operations in profiles, such as
  /// `trireme:all_reduce`. Call it before the first operation.
  void set_profiling_prefix(std::string prefix) { profiling_prefix_ = std::move(prefix); }

  const std::string getBackendName() const override { return connection_->name(); }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // counts from 1 on every rank
  std::uint64_t getSequenceNumberForGroup() override { return sequence_number_; }
  void abort() override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
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

 private:
  Operation all_reduce_of(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  Operation all_gather_of(const Tensors& outputs, const at::Tensor& input) const;
  Operation all_gather_of(const at::Tensor& output, const at::Tensor& input) const;
  Operation reduce_scatter_of(const at::Tensor& output, const at::Tensor& input,
                              const c10d::ReduceOp& op) const;

  // Starts an operation and returns its work, or carries it out and returns null.
  WorkPtr start(Operation operation, bool is_async = true,
                std::chrono::milliseconds timeout = kNoTimeout, bool is_profiled = true);
  // Does the same for all operations, which have been checked, as one work.
  template <typename Options>
  WorkPtr start_all(std::vector<Operation> operations, const Options& options);

  const std::shared_ptr<EngineConnection> connection_;
  std::string profiling_prefix_ = "trireme";
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_number_ = 0;
  std::optional<std::vector<WorkPtr>> coalesced_;  // between startCoalescing and endCoalescing
};

}  // namespace trireme::comm

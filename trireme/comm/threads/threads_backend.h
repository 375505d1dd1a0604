// SPDX-License-Identifier: Apache-2.0
// The engine between threads of one process as LibTorch knows engines: a c10d::Backend.
#pragma once

#include <trireme/comm/threads/group_state.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

/// Strided tensors of any dtype on any device; each rank may have another one. Messages meet by
/// sender, receiver and tag, the oldest first, any number outstanding; collectives by their number.
/// No call waits for another rank, or for a device: the rank that completes an operation gives the
/// copies to streams, and `wait` of each rank's work lets its current stream follow them. With
/// `asyncOp` false in the options a call is that and `wait`. Errors are CommError by `wait`, and
/// UsageError.
///
/// Thread-safety: safe, with one backend for each rank; collectives of a rank in one order.
class ThreadsBackend final : public c10d::Backend {
 public:
  ThreadsBackend(std::shared_ptr<threads::GroupState> state, int rank, int size,
                 std::chrono::milliseconds timeout);
  ~ThreadsBackend() override;

  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { return "threads"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}  // counts from 1 on every rank

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  /// Wakes all ranks, now and for good, with a CommError that says `reason`. The first one counts.
  void abort(const std::string& reason);
  void abort() override;

 private:
  WorkPointer start(c10d::OpType type, threads::Call call, Tensors inputs, Tensors outputs,
                    bool is_async, std::chrono::milliseconds timeout);
  void check_rank(std::int64_t rank, const char* operation) const;

  std::shared_ptr<threads::GroupState> state_;
  std::atomic<std::chrono::milliseconds> timeout_;
};

}  // namespace trireme::comm

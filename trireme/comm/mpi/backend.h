// SPDX-License-Identifier: Apache-2.0
// c10d's backend interface over MPI, for CPU tensors.
#pragma once

#include <trireme/comm/mpi/progress.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <optional>
#include <vector>

namespace trireme::comm::mpi {

/// Every operation is asynchronous, takes tensors of any strides and moves any dtype. Reductions
/// know fp64, fp32, fp16, bf16, int8 to int64, uint8, bool and the complex types; fp16 and bf16
/// travel and are folded as fp32 and are rounded once. The average of integers truncates; bool adds
/// as `or` and multiplies as `and`.
///
/// Wrong arguments throw UsageError before anything is sent. When MPI fails or a deadline passes
/// the connection is given up: MPI cannot cancel a collective. Operations under way then fail, and
/// later ones throw c10::DistBackendError. Thread-safe, but operations must start in the same order
/// on all ranks.
class MpiBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;

  /// @param timeout deadline of operations that bring none of their own.
  MpiBackend(std::shared_ptr<Connection> connection, int rank, int size,
             std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "mpi"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // equal anyway: all ranks make the same calls
  std::uint64_t getSequenceNumberForGroup() override { return sequence_number_; }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  /// Returns what is done when all that was started since startCoalescing is done.
  WorkHandle endCoalescing() override;

  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkHandle allreduce_coalesced(Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& options) override;
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;

  WorkHandle allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& options) override;
  WorkHandle _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override;
  WorkHandle allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) override;
  WorkHandle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) override;
  WorkHandle gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override;

  WorkHandle scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override;
  WorkHandle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override;
  WorkHandle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override;
  WorkHandle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::ReduceScatterOptions& options) override;

  WorkHandle alltoall(Tensors& outputs, Tensors& inputs,
                      const c10d::AllToAllOptions& options) override;
  WorkHandle alltoall_base(at::Tensor& output, at::Tensor& input,
                           std::vector<std::int64_t>& output_splits,
                           std::vector<std::int64_t>& input_splits,
                           const c10d::AllToAllOptions& options) override;

  WorkHandle send(Tensors& tensors, int to, int tag) override;
  WorkHandle recv(Tensors& tensors, int from, int tag) override;
  WorkHandle recvAnysource(Tensors& tensors, int tag) override;
  WorkHandle barrier(const c10d::BarrierOptions& options) override;

 private:
  template <typename Fill>
  WorkHandle start(const char* title, c10d::OpType type, Tensors results,
                   std::chrono::milliseconds timeout, const Fill& fill);
  WorkHandle receive(const char* title, c10d::OpType type, Tensors& tensors, int from, int tag);
  std::int64_t check_rank(std::int64_t rank, const char* title, const char* what) const;
  int check_tag(int tag, const char* title) const;

  using MpiWorkHandle = c10::intrusive_ptr<MpiWork>;

  std::shared_ptr<Connection> connection_;
  c10::intrusive_ptr<Options> options_;
  int highest_tag_;
  std::atomic<std::uint64_t> sequence_number_ = 0;  // relaxed: a label
  std::optional<std::vector<MpiWorkHandle>>
      coalesced_;  // between startCoalescing and endCoalescing
};

}  // namespace trireme::comm::mpi

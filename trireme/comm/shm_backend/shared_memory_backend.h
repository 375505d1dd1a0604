// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine as LibTorch knows engines: a c10d::Backend, for code that speaks c10d
// (ProcessGroup, functional collectives). Group calls the engine itself, without this detour.
#pragma once

#include <trireme/comm/shm/communicator.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

class SharedMemoryWork;

/// CPU tensors of any layout; what is not contiguous is copied. Reductions: fp64, fp32, fp16, bf16,
/// int8 to int64, uint8, bool, complex; everything else moves bytes, of any dtype. Operations run
/// in the order in which they are started, sends and receives apart. With `asyncOp` false in the
/// options, an operation is done when the call returns. Timeouts in options are not read: the
/// group's deadline holds. Errors are CommError. Thread-safety: safe, but that coalescing is one
/// thread's, with no other one starting operations meanwhile.
class SharedMemoryBackend final : public c10d::Backend {
 public:
  explicit SharedMemoryBackend(std::shared_ptr<shm::Communicator> communicator);
  ~SharedMemoryBackend() override;

  const std::shared_ptr<shm::Communicator>& communicator() const noexcept { return communicator_; }

  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { return "shm"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}  // counts from 1 on every rank
  std::uint64_t getSequenceNumberForGroup() override { return num_started_; }

 private:
  c10::intrusive_ptr<SharedMemoryWork> make_work(c10d::OpType type, const char* title,
                                                 const Tensors& inputs, Tensors outputs);
  // Starts `body`, or runs it here where the caller waits anyway.
  WorkPointer launch(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                     bool is_async, std::function<void()> body);
  void follow(const c10::intrusive_ptr<SharedMemoryWork>& work,
              const std::shared_ptr<shm::Transfer>& transfer, std::function<void()> end_well);
  WorkPointer receive_from(Tensors& tensors, int source, int tag, c10d::OpType type);

  std::shared_ptr<shm::Communicator> communicator_;
  std::atomic<std::uint64_t> num_started_ = 0;
  std::optional<std::vector<WorkPointer>> coalesced_;  // between startCoalescing and endCoalescing
};

/// The engine's name for a dtype. Throws UsageError where it has none.
shm::DataType to_shared_memory_type(at::ScalarType type, const char* operation);

/// The same for what is moved only, by which ranks compare their calls; bytes where it has none.
shm::DataType to_moved_type(at::ScalarType type);

}  // namespace trireme::comm

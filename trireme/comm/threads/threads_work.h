// SPDX-License-Identifier: Apache-2.0
// Operations between threads under way, as c10d knows them.
#pragma once

#include <trireme/comm/threads/group_state.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <vector>

namespace trireme::comm::threads {

/// `wait` blocks the host until all ranks have come, and lets the calling thread's current stream
/// of the tensors' device wait for the copies; where that is the processor, the host. Has no
/// futures. Thread-safety: safe.
class ThreadsWork final : public c10d::Work {
 public:
  /// @param timeout holds where `wait` is given none.
  ThreadsWork(std::shared_ptr<GroupState> state, std::shared_ptr<PendingOp> pending,
              c10d::OpType type, std::chrono::milliseconds timeout);

  /// Whether the copies are done on the device, or it has failed. Does not block.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return pending_->outputs; }
  std::uint64_t getSequencenumber() const override { return pending_->call.number; }
  int sourceRank() const override { return pending_->call.peer; }

 private:
  std::shared_ptr<GroupState> state_;
  std::shared_ptr<PendingOp> pending_;
  std::chrono::milliseconds timeout_;
};

}  // namespace trireme::comm::threads

// SPDX-License-Identifier: Apache-2.0
// Operations of the shared-memory engine under way, as c10d knows them.
#pragma once

#include <trireme/comm/shm/point_to_point.h>
#include <trireme/comm/shm/queue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

namespace trireme::comm {

/// One operation. `wait` lends its thread to it; its timeout is not read, for the group's deadline
/// holds. Thread-safety: safe.
class SharedMemoryWork final : public c10d::Work {
 public:
  SharedMemoryWork(int rank, c10d::OpType type, const char* title,
                   const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                   std::uint64_t sequence_number);

  /// `queue` runs `job`; it lives as long as the backend, which ends its jobs first.
  void set_job(shm::Queue& queue, std::shared_ptr<shm::Job> job);
  /// The same for a message.
  void set_transfer(shm::PointToPoint& messages, std::shared_ptr<shm::Transfer> transfer);
  void set_source(int source) { source_ = source; }

  /// Ends the operation, well where `error` is null, and its future.
  void complete(std::exception_ptr error);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return sequence_number_; }
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  // To be called with mutex_ locked: the future, if the caller is to complete it now.
  c10::intrusive_ptr<c10::ivalue::Future> claim_future();
  void complete_future(c10::ivalue::Future& future);

  std::vector<at::Tensor> outputs_;
  std::uint64_t sequence_number_;
  int source_ = -1;
  shm::Queue* queue_ = nullptr;
  std::shared_ptr<shm::Job> job_;
  shm::PointToPoint* messages_ = nullptr;
  std::shared_ptr<shm::Transfer> transfer_;
  bool future_is_claimed_ = false;                  // by whoever completes it; guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_ of Work
};

/// Several works as one. Thread-safety: as theirs.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// The c10d::Work of all engines: an operation under way, and several of them as one.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

namespace trireme::comm {

/// An operation under way. An engine derives from it where it can do better than sleep while
/// somebody waits. Thread-safety: safe.
class PendingOperation : public c10d::Work {
 public:
  PendingOperation(Operation operation, int rank);

  const Operation& operation() const noexcept { return operation_; }

  /// Ends the operation and its future, once, from any thread: well where `failure` is null, after
  /// the results have been copied back.
  void complete(std::exception_ptr failure);
  /// Names the rank that a message came from; before `complete`.
  void set_source(int rank) { source_ = rank; }

  bool isCompleted() override;
  /// Throws what the operation failed with. @param timeout 0: the engine's own deadline holds.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return operation_.results; }
  std::uint64_t getSequencenumber() const override { return operation_.number; }
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  /// Blocks until `complete` was called, or throws. Sleeps; throws CommError after `timeout`.
  virtual void wait_for_completion(std::chrono::milliseconds timeout);
  /// Somebody asks without waiting, and may do so again and again.
  virtual void poll() {}
  /// Says where the operation is, for the message of a missed timeout: `in the queue`.
  virtual std::string place() const { return "under way"; }

  bool has_completed() { return Work::isCompleted(); }

 private:
  void complete_future(c10::ivalue::Future& future);
  c10::intrusive_ptr<c10::ivalue::Future> claim_future();

  Operation operation_;
  int source_;
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

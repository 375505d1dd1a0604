// SPDX-License-Identifier: Apache-2.0
// PendingOperation: the c10d::Work of all engines, a running operation. CoalescedWork: several
// works as one.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::comm {

/// A running operation. An engine derives from it if a waiting thread can do more than sleep.
/// Thread-safety: safe.
class PendingOperation : public c10d::Work {
 public:
  PendingOperation(Operation operation, int rank);

  const Operation& operation() const noexcept { return operation_; }

  /// Ends the operation and its future. Called once, from any thread. If `failure` is null, the
  /// results are copied back first. Callbacks of the future run on another thread.
  void complete(std::exception_ptr failure);
  /// Sets the rank that a message came from. Call it before `complete`.
  void set_source(int rank) { source_ = rank; }

  bool isCompleted() override;
  /// Blocks until the operation is done and throws its failure.
  /// @param timeout the longest time to wait; 0 leaves the deadline to the engine.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return operation_.results; }
  std::uint64_t getSequencenumber() const override { return operation_.number; }
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  /// Blocks until `complete` was called, or throws. By default sleeps, and throws CommError after
  /// `timeout`.
  virtual void wait_for_completion(std::chrono::milliseconds timeout);
  /// Called when a thread asks for the state without waiting, perhaps repeatedly.
  virtual void poll() {}
  /// Returns where the operation is, for the message of a missed deadline, such as `in the queue`.
  virtual std::string place() const { return "under way"; }

  bool has_completed() { return Work::isCompleted(); }

 private:
  void settle_future();
  void complete_future(c10::ivalue::Future& future);
  c10::intrusive_ptr<c10::ivalue::Future> claim_future();

  Operation operation_;
  int source_;
  bool future_is_claimed_ = false;  // by the thread that completes it; guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_ of Work
};

/// Several works as one. The value of its future is the list of all results. Thread-safety: that of
/// the works.
class CoalescedWork final : public c10d::Work {
 public:
  /// @param profiling_title the title of the record that a profiler gets, valid until the end of
  /// the process; null for none.
  /// @param tensors whose shapes are in that record.
  explicit CoalescedWork(int rank, const char* profiling_title = nullptr,
                         const std::vector<at::Tensor>& tensors = {});

  /// Adds a work. Call it before the object is given to anybody.
  void add(c10::intrusive_ptr<c10d::Work> work) { works_.push_back(std::move(work)); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void end_record();

  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace trireme::comm

// SPDX-License-Identifier: Apache-2.0
// What a caller holds while the phases of a collective run on another thread, and that thread.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {

/// Where a collective is.
enum class Phase : std::uint8_t { kQueue, kInside, kAcross, kFlat };

/// A collective that runs in phases. Safe to use from several threads.
class PhasedWork : public c10d::Work {
 public:
  /// @param operation a literal, such as `all-reduce`.
  /// @param describe_phase says in words where a phase takes place.
  PhasedWork(int rank, c10d::OpType type, const char* operation, std::uint64_t sequence_number,
             std::chrono::milliseconds timeout, std::vector<at::Tensor> outputs,
             std::function<std::string(Phase)> describe_phase);

  /// Throws CommError where the collective failed, or where `timeout` (0: none but those of the
  /// phases) passes before it is done; names the phase.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return sequence_number_; }

  /// Deadline of all its phases together, counted from the first.
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// `all-reduce (number 7)`.
  std::string name() const;
  const char* operation() const noexcept { return operation_; }
  void enter(Phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }
  std::string describe(Phase phase) const { return describe_phase_(phase); }

  /// Ends it, once; null for success.
  void complete(const std::exception_ptr& failure);

 private:
  const char* const operation_;
  const std::uint64_t sequence_number_;
  const std::chrono::milliseconds timeout_;
  const std::vector<at::Tensor> outputs_;
  const std::function<std::string(Phase)> describe_phase_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<Phase> phase_ = Phase::kQueue;  // relaxed: only a message reads it
};

/// A thread that runs tasks in the order in which they were submitted. Tasks do not throw. Safe to
/// use from several threads.
class Worker {
 public:
  Worker();
  /// Runs what was submitted, then ends.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void submit(std::function<void()> task);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may outlive this
  std::thread thread_;
};

}  // namespace trireme::comm

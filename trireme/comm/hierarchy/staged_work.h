// SPDX-License-Identifier: Apache-2.0
// What a caller holds while the stages of a collective run on another thread, and that thread.
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
enum class Stage : std::uint8_t { kQueue, kInside, kAcross, kFlat };

/// A collective that runs in stages. Safe to use from several threads.
class StagedWork : public c10d::Work {
 public:
  /// @param operation a literal, such as `all-reduce`.
  /// @param describe_stage says in words where a stage takes place.
  StagedWork(int rank, c10d::OpType type, const char* operation, std::uint64_t sequence_number,
             std::chrono::milliseconds timeout, std::vector<at::Tensor> outputs,
             std::function<std::string(Stage)> describe_stage);

  /// Throws CommError where the collective failed, or where `timeout` (0: none but those of the
  /// stages) passes before it is done; names the stage.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return sequence_number_; }

  /// Deadline of all its stages together, counted from the first.
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// `all-reduce (number 7)`.
  std::string name() const;
  const char* operation() const noexcept { return operation_; }
  void enter(Stage stage) noexcept { stage_.store(stage, std::memory_order_relaxed); }
  std::string describe(Stage stage) const { return describe_stage_(stage); }

  /// Ends it, once; null for success.
  void complete(const std::exception_ptr& failure);

 private:
  const char* const operation_;
  const std::uint64_t sequence_number_;
  const std::chrono::milliseconds timeout_;
  const std::vector<at::Tensor> outputs_;
  const std::function<std::string(Stage)> describe_stage_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<Stage> stage_ = Stage::kQueue;  // relaxed: only a message reads it
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

// SPDX-License-Identifier: Apache-2.0
// A collective whose phases run on another thread, and where it is.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace trireme::comm {

/// Where a collective is.
enum class Phase : std::uint8_t { kQueue, kInside, kAcross, kFlat };

/// A collective that runs in phases. Operation::timeout is the deadline of all of them together,
/// counted from the first. Thread-safety: safe.
class PhasedOperation final : public PendingOperation {
 public:
  /// @param describe_phase says in words where a phase takes place.
  PhasedOperation(Operation operation, int rank, std::function<std::string(Phase)> describe_phase)
      : PendingOperation(std::move(operation), rank), describe_phase_(std::move(describe_phase)) {}

  /// `all-reduce (number 7)`.
  std::string name() const {
    return join_message(name_of(operation().kind), " (number ", operation().number, ")");
  }
  void enter(Phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }
  std::string describe(Phase phase) const { return describe_phase_(phase); }

 protected:
  std::string place() const override { return describe(phase_.load(std::memory_order_relaxed)); }

 private:
  const std::function<std::string(Phase)> describe_phase_;
  std::atomic<Phase> phase_ = Phase::kQueue;  // relaxed: only a message reads it
};

}  // namespace trireme::comm

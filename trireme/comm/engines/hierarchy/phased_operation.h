// SPDX-License-Identifier: Apache-2.0
// PhasedOperation: a collective whose phases run on another thread.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace trireme::comm {

/// The place of a collective: in the queue, inside the host, between hosts, or over all ranks.
enum class Phase : std::uint8_t { kQueue, kInside, kAcross, kFlat };

/// A collective that runs in phases. Operation::timeout is the deadline of all phases together,
/// counted from the first. Thread-safety: safe.
class PhasedOperation final : public PendingOperation {
 public:
  /// @param describe_phase returns a text that says where a phase takes place.
  PhasedOperation(Operation operation, int rank, std::function<std::string(Phase)> describe_phase)
      : PendingOperation(std::move(operation), rank), describe_phase_(std::move(describe_phase)) {}

  /// Returns a text such as `all-reduce (number 7)`.
  std::string name() const {
    return join_message(name_of(operation().kind), " (number ", operation().number, ")");
  }
  /// Records that a phase begins.
  void enter(Phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }
  std::string describe(Phase phase) const { return describe_phase_(phase); }

 protected:
  std::string place() const override { return describe(phase_.load(std::memory_order_relaxed)); }

 private:
  const std::function<std::string(Phase)> describe_phase_;
  std::atomic<Phase> phase_ = Phase::kQueue;  // relaxed: only a message reads it
};

}  // namespace trireme::comm

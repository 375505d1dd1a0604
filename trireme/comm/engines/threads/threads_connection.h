// SPDX-License-Identifier: Apache-2.0
// The threads engine as an EngineConnection: one rank's place in a GroupState.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/engines/threads/group_state.h>

#include <chrono>
#include <memory>
#include <string>

namespace trireme::comm {

/// Carries strided tensors of any dtype on any device, which may differ between ranks. Messages
/// match by sender, receiver and tag, the oldest first. Any number may be outstanding. Collectives
/// match by their number. No call waits for another rank or for a device. The rank that completes
/// an operation gives the copies to streams, and `wait` of each rank's work makes its current
/// stream follow them. Failures are CommError, thrown by `wait`, and UsageError.
class ThreadsConnection final : public EngineConnection {
 public:
  ThreadsConnection(std::shared_ptr<threads::GroupState> state, int rank, int size);
  ~ThreadsConnection() override;

  TensorForm form() const override { return TensorForm::kAny; }
  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  void abort(const std::string& reason) override { state_->abort(rank(), reason); }

 private:
  const std::shared_ptr<threads::GroupState> state_;
};

}  // namespace trireme::comm

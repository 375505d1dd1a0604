// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine as an EngineConnection: turns operations on tensors into calls of a
// Communicator, which handles plain memory.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/engines/shm/communicator.h>

#include <memory>

namespace trireme::comm {

/// Supports reductions of fp64, fp32, fp16, bf16, int8 to int64, uint8, bool and complex types. All
/// other operations move bytes of any dtype. Operations run in the order in which they are started;
/// sends and receives have an order of their own. The deadline of the group holds; timeouts of
/// single operations are ignored. Failures are CommError.
class ShmConnection final : public EngineConnection {
 public:
  explicit ShmConnection(std::shared_ptr<shm::Communicator> communicator);

  shm::Communicator& communicator() const noexcept { return *communicator_; }

  bool keeps_records() const override { return true; }
  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  bool try_run(const Operation& operation) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;

 private:
  const std::shared_ptr<shm::Communicator> communicator_;
};

}  // namespace trireme::comm

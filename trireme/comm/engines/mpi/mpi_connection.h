// SPDX-License-Identifier: Apache-2.0
// MPI as an EngineConnection, for CPU tensors.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/engines/mpi/progress.h>
#include <trireme/comm/engines/mpi/reduction.h>

#include <memory>
#include <string>

namespace trireme::comm::mpi {

/// Supports reductions of fp64, fp32, fp16, bf16, int8 to int64, uint8, bool and complex types. MPI
/// cannot cancel a collective. So if MPI fails or a deadline passes, the connection is given up:
/// running operations fail, and later ones throw c10::DistBackendError.
class MpiConnection final : public EngineConnection {
 public:
  MpiConnection(std::shared_ptr<Connection> connection, int rank, int size);

  TensorForm form() const override { return TensorForm::kBlock; }
  void check(const Operation& operation) const override;
  WorkPtr submit(Operation operation) override;
  void abort(const std::string& reason) override;

 private:
  void start(MpiOperation& work) const;
  Reduction reduction_of(const Operation& operation) const;

  const std::shared_ptr<Connection> connection_;
  const int highest_tag_;
};

}  // namespace trireme::comm::mpi

// SPDX-License-Identifier: Apache-2.0
// MPI as an EngineConnection, for CPU tensors.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/engines/mpi/progress.h>
#include <trireme/comm/engines/mpi/reduction.h>

#include <memory>
#include <string>

namespace trireme::comm::mpi {

/// Reductions know fp64, fp32, fp16, bf16, int8 to int64, uint8, bool and the complex types. When
/// MPI fails or a deadline passes the connection is given up: MPI cannot cancel a collective.
/// Operations under way then fail, and later ones throw c10::DistBackendError.
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

// SPDX-License-Identifier: Apache-2.0
// How MPI folds elements of a dtype that it may not know: in which dtype, and what is done before
// and after.
#pragma once

#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/engines/mpi/module.h>
#include <trireme/comm/engines/mpi/progress.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm::mpi {

/// fp16 and bf16 travel and are folded as fp32 and are rounded once. The average of integers
/// truncates; bool adds as `or` and multiplies as `and`.
class Reduction {
 public:
  /// Throws UsageError where `op` is not defined for the dtype.
  Reduction(OperationKind operation, at::ScalarType type, const c10d::ReduceOp& op, int size);

  Element element() const { return element_; }
  Fold fold() const { return fold_; }

  /// Contiguous contribution of this rank; may be `input` itself, which is left as it is.
  at::Tensor contribution(const at::Tensor& input) const;
  /// The same, but where `data` can be folded in place it is, and scaled.
  at::Tensor contribution_in_place(const at::Tensor& data) const;
  /// Where the result for `output` lands.
  at::Tensor landing(const at::Tensor& output) const;
  /// Makes `work` bring the folded `landed` into `output` at the end.
  void deliver(const at::Tensor& landed, const at::Tensor& output, MpiOperation& work) const;

 private:
  at::ScalarType type_;  // in which MPI folds
  Element element_ = Element::kUint8;
  Fold fold_ = Fold::kSum;
  int divisor_ = 1;
  at::Tensor factor_;  // undefined: none
};

}  // namespace trireme::comm::mpi

// SPDX-License-Identifier: Apache-2.0
// Reduction: in which dtype MPI reduces elements that it may not support, and what is done before
// and after.
#pragma once

#include <trireme/comm/adapter/operation.h>
#include <trireme/comm/engines/mpi/module.h>
#include <trireme/comm/engines/mpi/progress.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm::mpi {

/// Reduces fp16 and bf16 as fp32, and rounds once. The average of integers is truncated. For bool,
/// the sum is `or` and the product is `and`.
class Reduction {
 public:
  /// Throws UsageError if `op` is not defined for the dtype.
  Reduction(OperationKind operation, at::ScalarType type, const c10d::ReduceOp& op, int size);

  Element element() const { return element_; }
  Fold fold() const { return fold_; }

  /// Returns this rank's contiguous contribution. It may be `input` itself, which is not changed.
  at::Tensor contribution(const at::Tensor& input) const;
  /// Returns this rank's contribution. If `data` can be reduced in place, returns `data`, scaled if
  /// necessary.
  at::Tensor contribution_in_place(const at::Tensor& data) const;
  /// Returns the tensor that receives the result for `output`.
  at::Tensor landing(const at::Tensor& output) const;
  /// Makes `work` copy the reduced `landed` to `output` at its end.
  void deliver(const at::Tensor& landed, const at::Tensor& output, MpiOperation& work) const;

 private:
  at::ScalarType type_;  // in which MPI folds
  Element element_ = Element::kUint8;
  Fold fold_ = Fold::kSum;
  int divisor_ = 1;
  at::Tensor factor_;  // undefined: none
};

}  // namespace trireme::comm::mpi

// SPDX-License-Identifier: Apache-2.0
// From tensors of any strides and dtype to the contiguous memory that MPI moves and folds, and
// back.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/mpi/module.h>
#include <trireme/comm/mpi/progress.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace trireme::comm::mpi {

/// Throws UsageError made of `parts` unless `holds`.
template <typename... Parts>
void require(bool holds, const char* hint, const Parts&... parts) {
  if (!holds) throw UsageError(join_message(parts...), hint);
}

/// Throws UsageError unless the tensor is a strided one in CPU memory.
void check_input(const at::Tensor& tensor, const char* title);
/// Also that no two of its elements share memory.
void check_output(const at::Tensor& tensor, const char* title);

/// The tensor's memory; it must be contiguous.
Bytes bytes_of(const at::Tensor& tensor);

/// A contiguous tensor of the same shape to receive what ends in `tensor`: itself where possible,
/// else a new one that `work` copies into it at the end.
at::Tensor landing(const at::Tensor& tensor, MpiWork& work);

/// A reduction as MPI does it: dtype in which it is folded, what is done before and after.
class Reduction {
 public:
  /// Throws UsageError where `op` is not defined for the dtype.
  Reduction(at::ScalarType type, const c10d::ReduceOp& op, int size, const char* title);

  Element element() const { return element_; }
  Fold fold() const { return fold_; }

  /// Contiguous contribution of this rank; may be `input` itself, which is left as it is.
  at::Tensor contribution(const at::Tensor& input) const;
  /// The same, but where `data` can be folded in place it is, and scaled.
  at::Tensor contribution_in_place(const at::Tensor& data) const;
  /// Where the result for `output` lands.
  at::Tensor landing(const at::Tensor& output) const;
  /// Makes `work` bring the folded `landed` into `output` at the end.
  void deliver(const at::Tensor& landed, const at::Tensor& output, MpiWork& work) const;

 private:
  at::ScalarType type_;  // in which MPI folds
  Element element_ = Element::kUint8;
  Fold fold_ = Fold::kSum;
  int divisor_ = 1;
  at::Tensor factor_;  // undefined: none
};

}  // namespace trireme::comm::mpi

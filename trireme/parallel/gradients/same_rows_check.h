// SPDX-License-Identifier: Apache-2.0
// Warns if all ranks along `data` train on the same rows. Then the mean of their gradients equals
// the gradient of each rank. The check needs no communication of its own.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Compares a sample of the gradients of one bucket in the first two steps. Not thread-safe.
class SameRowsCheck {
 public:
  /// Checks the ranks of the group `data`.
  explicit SameRowsCheck(const comm::Group& data) : data_(data) {}

  /// Returns true if the current step still needs a sample.
  bool wants_sample() const;
  /// Keeps a sample of what this rank contributes to a sum.
  void take_sample(const at::Tensor& own_gradients);
  /// Compares the sample with the same elements of the sum, which has been divided by `divisor`.
  /// Warns on rank 0 if all ranks had the same gradients in both steps.
  void compare(const at::Tensor& reduced_gradients, double divisor);
  /// Discards the sample of an interrupted step.
  void abandon() { sample_.reset(); }

 private:
  comm::Group data_;
  at::Tensor sample_;  // [n], the sample of the current step
  int num_steps_ = 0;  // the number of compared steps
  int num_same_ = 0;   // the number of those with equal gradients
};

}  // namespace trireme::detail

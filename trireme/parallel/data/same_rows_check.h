// SPDX-License-Identifier: Apache-2.0
// Warns where all ranks along `data` train on the same rows: then the mean of their gradients is
// the gradient that each of them had. Needs no communication of its own.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Looks at the first two steps, at a sample of the gradients of one bucket. Not thread-safe.
class SameRowsCheck {
 public:
  explicit SameRowsCheck(const comm::Group& data) : data_(data) {}

  /// Returns true while the next step has a bucket to be looked at.
  bool wants_sample() const;
  /// Keeps a sample of what this rank gives to a sum.
  void take_sample(const at::Tensor& own_gradients);
  /// Compares the sample with the same elements of the sum, which has been divided by `divisor`.
  /// Warns on rank 0 after the second step in which all ranks have had the same.
  void compare(const at::Tensor& reduced_gradients, double divisor);
  /// Forgets the sample of a step that was interrupted.
  void abandon() { sample_.reset(); }

 private:
  comm::Group data_;
  at::Tensor sample_;  // [n] of the step under way
  int num_steps_ = 0;  // that were compared
  int num_same_ = 0;
};

}  // namespace trireme::detail

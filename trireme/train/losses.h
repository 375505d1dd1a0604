// SPDX-License-Identifier: Apache-2.0
// Losses as types. Unlike LibTorch's functions they never broadcast and never read a label that is
// no class and no probability: what does not fit is an error that shows both sides.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

/// Mean of the squared differences, over all elements: mean((output - target)^2).
struct MeanSquaredError {
  /// Returns a scalar. `output` and `target` have one shape and one dtype. Throws UsageError that
  /// shows both shapes or both dtypes where they differ: [16, 1, 1] against [16, 1] would broadcast
  /// to 256 differences.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
};

/// Softmax cross-entropy against class numbers or soft labels, averaged over the samples.
struct CrossEntropy {
  /// Share of the target's probability that is spread over all classes, in [0, 1).
  double label_smoothing = 0;

  /// Returns a scalar, bit by bit what LibTorch's cross_entropy returns. `output` [N, C] or [N, C,
  /// ...] holds logits, `target` [N] or [N, ...] class numbers of any integer dtype, or, in the
  /// output's shape, the probability of each class in any floating dtype (data::mixup and cutmix
  /// make such). Throws UsageError for shapes, dtypes or a smoothing that do not fit, and DataError
  /// naming label, row and number of classes for a label outside [0, C), or number and row for a
  /// soft label that is no probability. Labels on another device than the CPU are left to its
  /// kernels, which check class numbers without making this thread wait.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
};

}  // namespace trireme

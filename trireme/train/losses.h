// SPDX-License-Identifier: Apache-2.0
// Losses as types. Unlike LibTorch's functions they never broadcast, and they check every label.
// Shapes that do not fit are an error that shows both sides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme {

/// The mean of the squared differences over all elements: mean((output - target)^2).
struct MeanSquaredError {
  /// Returns a scalar. `output` and `target` must have the same shape and dtype. Otherwise throws
  /// UsageError that shows both: broadcasting would turn [16, 1, 1] and [16, 1] into 256
  /// differences.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
};

/// Softmax cross-entropy against class numbers or soft labels, averaged over the samples.
struct CrossEntropy {
  /// The share of the target's probability that is spread over all classes, in [0, 1).
  double label_smoothing = 0;

  /// Returns a scalar with the same bits as LibTorch's cross_entropy.
  /// The checks of labels run on the CPU only. Labels on another device are left to its kernels,
  /// which check class numbers without making this thread wait.
  /// @param output logits, [N, C] or [N, C, ...].
  /// @param target class numbers [N] or [N, ...] of any integer dtype, or soft labels: the
  /// probability of each class, in the shape of `output` and any floating dtype. data::mixup and
  /// cutmix make soft labels.
  /// @throws UsageError if shapes, dtypes or the smoothing do not fit.
  /// @throws DataError for a class number outside [0, C), with label, row and number of classes.
  /// Also for a soft label outside [0, 1], with number and row.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
};

}  // namespace trireme

namespace trireme::detail {

/// Returns whether `target` has a floating-point dtype. It then holds a probability for each class
/// instead of class numbers.
bool is_soft(const at::Tensor& target);

/// Throws UsageError unless `output` is [N, C, ...] and `target` fits it. Class numbers are [N,
/// ...] of an integer dtype. Soft labels have the shape of `output`.
/// @param who names what needs the labels, for the message.
void check_labels(std::string_view who, const at::Tensor& output, const at::Tensor& target);

/// Throws DataError with label and row if a label is outside [0, classes).
/// @param labels contiguous, int64, on the CPU.
void check_label_range(const at::Tensor& labels, std::int64_t classes);

/// Throws DataError with number and row if a probability is outside [0, 1].
/// @param probabilities soft labels with at least one row.
void check_probabilities(const at::Tensor& probabilities);

}  // namespace trireme::detail

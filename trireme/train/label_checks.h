// SPDX-License-Identifier: Apache-2.0
// Checks of labels against the logits that they belong to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

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

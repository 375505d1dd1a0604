// SPDX-License-Identifier: Apache-2.0
// Checks of labels against the logits that they belong to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::detail {

/// Whether `target` holds a probability for each class rather than class numbers: floating point.
bool is_soft(const at::Tensor& target);

/// Throws UsageError unless `output` is [N, C, ...] and `target` [N, ...] of an integer dtype, or
/// of the output's shape where it is soft.
/// @param who says in the message what needs them.
void check_labels(std::string_view who, const at::Tensor& output, const at::Tensor& target);

/// Throws DataError naming label and row where one is outside [0, classes).
/// @param labels contiguous, int64, on the CPU.
void check_label_range(const at::Tensor& labels, std::int64_t classes);

/// Throws DataError naming number and row where one is outside [0, 1].
/// @param probabilities soft labels with at least one row.
void check_probabilities(const at::Tensor& probabilities);

}  // namespace trireme::detail

// SPDX-License-Identifier: Apache-2.0
// Checks of class numbers against the logits that they belong to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::detail {

/// Throws UsageError unless `output` is [N, C, ...] and `target` [N, ...] of an integer dtype.
/// @param who says in the message what needs them.
void check_labels(std::string_view who, const at::Tensor& output, const at::Tensor& target);

/// Throws DataError naming label and row where one is outside [0, classes).
/// @param labels contiguous, int64, on the CPU.
void check_label_range(const at::Tensor& labels, std::int64_t classes);

}  // namespace trireme::detail

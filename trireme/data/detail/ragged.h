// SPDX-License-Identifier: Apache-2.0
// A batch's column of samples that are not equally long.
#pragma once

#include <trireme/data/detail/sample_value.h>
#include <trireme/data/padding.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data::detail {

struct PaddedRows {
  at::Tensor rows;     // [rows, ...]
  at::Tensor lengths;  // as Padding::lengths says
};

/// Stacks at least one sample. `samples` are their numbers, for errors. Throws UsageError that
/// names column and sample where dtypes, or sizes in dimensions that are not padded, differ, where
/// a dimension is not there or given twice, where a sample is longer than the fixed length, and
/// where the dtype cannot hold the value.
PaddedRows stack_padded(const std::string& column, const Padding& padding,
                        const std::vector<Value>& rows, const std::vector<std::int64_t>& samples);

}  // namespace trireme::data::detail

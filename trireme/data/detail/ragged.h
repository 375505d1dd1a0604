// SPDX-License-Identifier: Apache-2.0
// Stacks samples of different lengths into one padded column.
#pragma once

#include <trireme/data/detail/sample_value.h>
#include <trireme/data/padding.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data::detail {

/// A padded column and the lengths before padding.
struct PaddedRows {
  at::Tensor rows;     ///< The samples, [rows, ...].
  at::Tensor lengths;  ///< The lengths, as Padding::lengths describes them.
};

/// Stacks one or more samples. Throws UsageError that names column and sample if
/// - dtypes differ, or sizes differ in a dimension that is not padded,
/// - a dimension to pad does not exist or is given twice,
/// - a sample is longer than the fixed length, or
/// - the dtype cannot represent the padding value.
///
/// @param column the name of the column, for errors.
/// @param padding the options.
/// @param rows the samples.
/// @param samples the numbers of the samples, for errors.
PaddedRows stack_padded(const std::string& column, const Padding& padding,
                        const std::vector<Value>& rows, const std::vector<std::int64_t>& samples);

}  // namespace trireme::data::detail

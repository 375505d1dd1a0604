// SPDX-License-Identifier: Apache-2.0
// What a pipeline hands out: some rows of every column.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Columns by name, each a CPU tensor [rows, ...]. The tensors belong to the receiver alone: the
/// pipeline keeps none of them.
struct Batch {
  std::vector<std::string> names;
  std::vector<at::Tensor> columns;

  /// Returns the column of that name. Throws UsageError that lists the columns there are.
  const at::Tensor& operator[](std::string_view name) const;

  /// Returns the number of rows; 0 for a batch without columns.
  std::int64_t rows() const;
};

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// What a data loader hands out: some rows of every column.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Columns by name, each a tensor [rows, ...] on the CPU, or on the device that DataLoader::to
/// names. The tensors belong to the receiver alone: the data loader keeps none of them. Their
/// memory is used for later batches once the last tensor that shares it has ended; resize_() cannot
/// make a large one larger.
struct Batch {
  std::vector<std::string> names;
  std::vector<at::Tensor> columns;

  /// How many of the last rows only fill the batch up (LastBatch::kPad). They repeat other samples
  /// and must not be counted; 0 to rows().
  std::int64_t padded_rows = 0;

  /// Returns the column of that name. Throws UsageError that lists the columns there are.
  const at::Tensor& operator[](std::string_view name) const;

  /// Returns the number of rows, padded ones included; 0 for a batch without columns.
  std::int64_t rows() const;

  /// Returns the number of rows that count, which are the first ones.
  std::int64_t valid_rows() const { return rows() - padded_rows; }

  /// Returns which rows count: bool [rows], on the device of the columns.
  at::Tensor mask() const;

  /// Returns the rows that count, as views of the columns.
  Batch without_padding() const;
};

}  // namespace trireme::data

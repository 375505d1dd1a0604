// SPDX-License-Identifier: Apache-2.0
// The batches that a data loader returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A batch: named columns, each a tensor [rows, ...].
///
/// The columns are on the CPU, or on the device that was given to DataLoader::to(). The tensors
/// belong to the receiver; the data loader keeps no reference to them. Their memory is reused for
/// later batches once the last tensor that shares it has been destroyed. For this reason resize_()
/// cannot enlarge a large column.
struct Batch {
  /// The names of the columns, in the order of `columns`.
  std::vector<std::string> names;
  /// The columns; all have the same number of rows.
  std::vector<at::Tensor> columns;

  /// The number of rows at the end that only fill the batch up (see LastBatch::kPad), from 0 to
  /// rows(). These rows repeat other samples and must not be counted.
  std::int64_t padded_rows = 0;

  /// Returns the column with this name. Throws UsageError with the list of columns if there is
  /// none.
  const at::Tensor& operator[](std::string_view name) const;

  /// Returns the number of rows, including padded ones. A batch without columns has 0.
  std::int64_t rows() const;

  /// Returns the number of rows that are not padding. They come first.
  std::int64_t valid_rows() const { return rows() - padded_rows; }

  /// Returns a bool tensor [rows] that is true for the rows that are not padding. It is on the
  /// device of the columns.
  at::Tensor mask() const;

  /// Returns the rows that are not padding, as views of the columns.
  Batch without_padding() const;
};

}  // namespace trireme::data

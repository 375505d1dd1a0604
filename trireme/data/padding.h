// SPDX-License-Identifier: Apache-2.0
// Options for padding samples of different lengths into one batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Describes how the samples of a column are padded at their ends. The number of dimensions, and
/// the sizes of all dimensions that are not padded, must be equal.
struct Padding {
  /// The value to pad with. It must be representable in the dtype of the column.
  double value = 0;

  /// All samples get the length of the longest one in the batch, rounded up to a multiple of this.
  std::int64_t multiple = 1;

  /// A fixed length for all batches, instead of `multiple`. A longer sample is an error.
  std::optional<std::int64_t> length = std::nullopt;

  /// The dimensions of a sample to pad, each to a length of its own; negative ones count from the
  /// last. Use {0} for tokens [time], {-1} for a spectrogram [mels, time] and {-2, -1} for images.
  std::vector<std::int64_t> dimensions = {0};

  /// The name of an additional column with the lengths before padding: int64 [rows], or [rows,
  /// dimensions] if there are several dimensions. If empty, there is no such column.
  std::string lengths = {};
};

}  // namespace trireme::data

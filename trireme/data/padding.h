// SPDX-License-Identifier: Apache-2.0
// How samples of unequal length come into one batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Makes the samples of a column equally long at their ends. Sizes in the other dimensions, and the
/// number of dimensions, must be equal anyway.
struct Padding {
  /// What is put there. Where the dtype is an integer it must be able to hold it.
  double value = 0;

  /// The longest sample of the batch says how long all become, rounded up to a multiple of this.
  std::int64_t multiple = 1;

  /// Or all batches have this length; a longer sample is an error.
  std::optional<std::int64_t> length = std::nullopt;

  /// The dimensions of a sample that are padded, each to a length of its own; negative ones count
  /// from the last. {0} for tokens [time], {-1} for a spectrogram [mels, time], {-2, -1} for
  /// images.
  std::vector<std::int64_t> dimensions = {0};

  /// Name of a further column with the lengths before padding: int64 [rows], or [rows, dimensions]
  /// where there are several. Empty: none.
  std::string lengths = {};
};

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// Data sets that can only be read from beginning to end, such as a log, a pipe or the rows of a
// database query.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// A function that returns the next sample, one tensor per column, or nullopt after the last one.
/// It may reuse the memory of a sample for the next one.
using SampleReader = std::function<std::optional<std::vector<at::Tensor>>()>;

/// Samples with named columns that are read in sequence. A data loader counts them from 0 as it
/// reads.
class IterableDataset {
 public:
  virtual ~IterableDataset() = default;

  /// Returns the names of the columns.
  virtual const std::vector<std::string>& columns() const = 0;

  /// Starts to read from the beginning.
  ///
  /// The reader is called by one thread at a time, but not always by the same one. All ranks must
  /// read the same samples in the same order, because each rank keeps only its part of them.
  /// @param pass the number of the pass: epoch times repetitions plus repetition. A data set may
  /// use it to return other samples in each pass.
  virtual SampleReader open(std::int64_t pass) const = 0;

  /// Returns the number of samples of a pass if it is known in advance, otherwise nullopt. Model
  /// needs it.
  virtual std::optional<std::int64_t> size() const { return std::nullopt; }
};

/// Makes an iterable data set of a function that starts to read. Throws UsageError if the function
/// is empty, there is no column, names repeat or the size is negative.
std::shared_ptr<const IterableDataset> iterable(std::vector<std::string> columns,
                                                std::function<SampleReader(std::int64_t pass)> open,
                                                std::optional<std::int64_t> size = std::nullopt);

}  // namespace trireme::data

// SPDX-License-Identifier: Apache-2.0
// Data sets that can only be read from their beginning to their end: a log, a pipe, the rows that a
// data base returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Returns the next sample, one tensor per column; nothing after the last. It may use the memory of
/// a sample again for the next one.
using SampleReader = std::function<std::optional<std::vector<at::Tensor>>()>;

/// Samples with named columns and without numbers of their own: a data loader counts them from 0 as
/// it reads them.
class IterableDataset {
 public:
  virtual ~IterableDataset() = default;

  virtual const std::vector<std::string>& columns() const = 0;

  /// Starts reading anew. The reader is called by one thread at a time, not always the same. All
  /// ranks must read the same samples in the same order, for each keeps its part of them alone.
  /// @param pass epoch times repetitions plus repetition, for a data set that differs from one to
  ///   the next.
  virtual SampleReader open(std::int64_t pass) const = 0;

  /// Returns how many samples open() gives, where that is known beforehand; Model needs it.
  virtual std::optional<std::int64_t> size() const { return std::nullopt; }
};

/// Makes such a data set of a function that starts reading. Throws UsageError where there is no
/// function or no column, names repeat, or the size is negative.
std::shared_ptr<const IterableDataset> iterable(std::vector<std::string> columns,
                                                std::function<SampleReader(std::int64_t pass)> open,
                                                std::optional<std::int64_t> size = std::nullopt);

}  // namespace trireme::data

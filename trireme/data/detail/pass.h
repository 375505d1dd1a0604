// SPDX-License-Identifier: Apache-2.0
// The plan of one pass: which samples are in which batch, before any of them is loaded.
#pragma once

#include <trireme/data/detail/loader_spec.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// The samples of one batch, one for each row.
struct Rows {
  std::vector<std::int64_t> samples;  ///< The sample numbers.
  std::int64_t padded = 0;            ///< The number of rows at the end that are padding.
};

/// The batches of this shard in one pass. Immutable, so that threads can share it.
class Pass {
 public:
  /// Plans the pass with this number: epoch times repetitions plus repetition.
  Pass(std::shared_ptr<const LoaderSpec> spec, std::uint64_t number);

  /// Returns the number of the pass.
  std::uint64_t number() const { return number_; }

  /// Returns the samples of a batch.
  Rows rows(std::int64_t batch) const;

  /// Returns the sample that replaces the one of a row after it and `attempt` - 1 replacements have
  /// failed.
  ///
  /// Replacements are the next samples in the order of this shard, wrapping around at its end. With
  /// buckets they are the next rows of the same batch. Returns nullopt when the row's own sample is
  /// reached again.
  std::optional<std::int64_t> replacement(std::int64_t batch, std::int64_t row,
                                          std::int64_t attempt) const;

 private:
  std::vector<std::int64_t> order_of_all() const;
  void plan_buckets();
  void add_batch(const std::vector<std::int64_t>& samples, std::int64_t batch_rows);
  std::int64_t sample(std::int64_t i) const;

  std::shared_ptr<const LoaderSpec> spec_;
  std::uint64_t number_;
  // The number of samples of this shard; 1 if it has none, so that it can pad with a sample of
  // another one.
  std::int64_t own_;
  // The number of rows that are not padding.
  std::int64_t kept_;

  // The samples of this shard if they are shuffled; with buckets, the rows of all batches.
  std::vector<std::int64_t> samples_;
  std::vector<std::size_t> begins_;  // The first row of each batch, and the end; only with buckets.
  std::vector<std::int64_t> padded_;  // The padded rows of each batch; only with buckets.
};

}  // namespace trireme::data::detail

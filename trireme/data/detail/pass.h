// SPDX-License-Identifier: Apache-2.0
// The plan of one pass: which samples are in which batch, before any of them is loaded. The two
// ways to shuffle sample numbers are a full permutation and a shuffle buffer.
#pragma once

#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/philox.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// Returns the numbers 0 to size - 1 in random order, determined by seed and pass. All orders are
/// equally likely.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass);

/// Chooses which sample leaves a shuffle buffer. The random numbers are determined by seed and
/// pass.
class BufferChoice {
 public:
  /// Makes the random numbers of a pass.
  BufferChoice(std::uint64_t seed, std::uint64_t pass);

  /// Returns a position from 0 to filled - 1, each with equal probability.
  std::size_t choose(std::size_t filled);

 private:
  Random random_;
};

/// Returns the numbers 0 to size - 1 in the order in which they leave a shuffle buffer.
///
/// The buffer is filled in ascending order. It emits a random number whenever it is full or all
/// numbers have been added.
std::vector<std::int64_t> buffered_order(std::int64_t size, std::int64_t buffer, std::uint64_t seed,
                                         std::uint64_t pass);

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

struct BatchRequest {
  /// The pass that the batch belongs to.
  std::uint64_t pass = 0;
  /// The number of the batch within its pass.
  std::int64_t number = 0;
  /// The samples, one per row.
  Rows rows;
  /// The plan of the pass, for data sets with numbered samples; otherwise null.
  std::shared_ptr<const Pass> plan;
  /// The samples themselves by row, for iterable data sets; otherwise empty.
  std::vector<std::vector<at::Tensor>> loaded;

  /// Returns the sample to use for a row if its own sample and `attempt` - 1 replacements have
  /// failed; see Pass::replacement. Returns nullopt if there is none left.
  std::optional<std::int64_t> replacement(std::int64_t row, std::int64_t attempt) const;
};

/// Returns the batches of an epoch in order, as lists of sample numbers, before any of them is
/// made. Not thread-safe.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  /// Returns the next batch, or nullopt after the last one.
  virtual std::optional<BatchRequest> next() = 0;
};

/// Makes the sampler for an epoch that begins with batch `first_batch`.
std::unique_ptr<BatchSampler> make_batch_sampler(const std::shared_ptr<const LoaderSpec>& spec,
                                                 std::int64_t epoch, std::int64_t first_batch);

}  // namespace trireme::data::detail

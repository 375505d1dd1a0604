// SPDX-License-Identifier: Apache-2.0
// Iterates over the batches of an epoch as lists of sample numbers, before any batch is made.
#pragma once

#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/pass.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// One batch to be made.
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

/// Returns the batches of an epoch in order. Not thread-safe.
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

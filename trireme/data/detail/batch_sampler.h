// SPDX-License-Identifier: Apache-2.0
// Walks through the batches of an epoch, before any of them is made.
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
  std::uint64_t pass = 0;
  std::int64_t number = 0;  // of the batch in its pass
  Rows rows;
  std::shared_ptr<const Pass> plan;             // where samples have numbers
  std::vector<std::vector<at::Tensor>> loaded;  // by row, where they have none

  /// The sample that stands for the one of this row where it and `attempt` - 1 others after it have
  /// failed; see Pass::replacement.
  std::optional<std::int64_t> replacement(std::int64_t row, std::int64_t attempt) const;
};

/// Not thread-safe.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  /// Returns the next batch, nothing after the last.
  virtual std::optional<BatchRequest> next() = 0;
};

std::unique_ptr<BatchSampler> make_batch_sampler(const std::shared_ptr<const LoaderSpec>& spec,
                                                 std::int64_t epoch, std::int64_t first_batch);

}  // namespace trireme::data::detail

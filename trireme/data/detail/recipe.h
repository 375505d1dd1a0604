// SPDX-License-Identifier: Apache-2.0
// The settings of a pipeline, which never change once a stream uses them.
#pragma once

#include <trireme/data/pipeline.h>

#include <vector>

namespace trireme::data::detail {

/// One map() call.
struct Step {
  Transform transform;
  std::uint64_t number;  // from 1, in the order of the calls
};

struct Recipe {
  std::shared_ptr<const Dataset> dataset;
  std::vector<std::vector<Step>> steps;  // by column
  std::uint64_t num_steps = 0;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> shuffle_seed;
  Shard shard;
  std::int64_t rows = 1;
  LastBatch last = LastBatch::kKeep;
  std::int64_t times = 1;
  int prefetch = 0;
  int workers = 1;

  /// Samples and batches in one pass. The latter throws UsageError as Pipeline::batches() does.
  std::int64_t samples_per_pass() const;
  std::int64_t batches_per_pass() const;
};

}  // namespace trireme::data::detail

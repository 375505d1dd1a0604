// SPDX-License-Identifier: Apache-2.0
// What a training returns.
#pragma once

#include <trireme/train/metric_accumulator.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme {

/// `step` steps of `epoch` are done, `global_step` over all epochs; all 0 before the first.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t global_step = 0;
};

/// One call of Model::fit; the same on every rank, but for times.
struct History {
  struct Epoch {
    std::int64_t epoch = 0;
    std::int64_t global_step = 0;
    /// Mean training loss over the samples of all ranks in the steps that this call took.
    double loss = 0;
    std::int64_t samples = 0;
    /// Of the training on this rank.
    double seconds = 0;
    std::optional<Evaluation> evaluation{};
  };

  struct Validation {
    std::int64_t epoch = 0;
    std::int64_t global_step = 0;
    Evaluation evaluation{};
  };

  std::vector<Epoch> epochs;            ///< those that ended
  std::vector<Validation> validations;  ///< at epochs' ends and in between
  bool is_stopped = false;              ///< before the last epoch
};

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// History, the record of losses and evaluations that a training returns, and Progress.
#pragma once

#include <trireme/train/metric_accumulator.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme {

/// How far training has come: `step` steps of `epoch` are done, and `global_step` steps over all
/// epochs. All are 0 before the first step.
struct Progress {
  std::int64_t epoch = 0;        ///< from 1
  std::int64_t step = 0;         ///< steps of this epoch that are done
  std::int64_t global_step = 0;  ///< steps of all epochs that are done
};

/// The record of one call of Model::fit. Equal on every rank except for times.
struct History {
  /// An epoch that has ended.
  struct Epoch {
    std::int64_t epoch = 0;        ///< from 1
    std::int64_t global_step = 0;  ///< steps of all epochs at its end
    /// The mean training loss over the samples of all ranks, in the steps that this call took.
    double loss = 0;
    /// The rows of all ranks in these steps.
    std::int64_t samples = 0;
    /// The time that training took on this rank.
    double seconds = 0;
    /// The evaluation at the end of the epoch, if there was one.
    std::optional<Evaluation> evaluation{};
  };

  /// An evaluation at the end of an epoch or within one.
  struct Validation {
    std::int64_t epoch = 0;        ///< from 1
    std::int64_t global_step = 0;  ///< steps of all epochs until then
    Evaluation evaluation{};       ///< the result, over all ranks
  };

  std::vector<Epoch> epochs;            ///< the epochs that have ended
  std::vector<Validation> validations;  ///< all evaluations in order
  bool is_stopped = false;              ///< true if training was stopped before the last epoch
};

}  // namespace trireme

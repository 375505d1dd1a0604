// SPDX-License-Identifier: Apache-2.0
// The counts of an evaluation, and how ranks add them up. Ranks exchange sums and numbers of
// samples, never means, so that parts of different sizes have the right weight.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme {

/// The result of an evaluation over all ranks.
struct Evaluation {
  /// The mean loss over the samples. The loss of a batch counts once for each of its rows.
  double loss = 0;
  /// The share of class numbers for which the largest logit is right, in [0, 1]. Not set if targets
  /// are not class numbers. Soft labels cannot be told from other floating-point targets, so they
  /// have no accuracy here. TopK and ConfusionMatrix use their most likely class.
  std::optional<double> accuracy;
  /// The number of samples.
  std::int64_t samples = 0;
};

/// The sums of one rank. Counts are exact integers; losses are summed in double.
struct MetricAccumulator {
  /// The sum of the losses of all samples.
  double loss_sum = 0;
  std::int64_t samples = 0;
  /// The number of class numbers that were compared with a prediction.
  std::int64_t labels = 0;
  /// The number of right predictions.
  std::int64_t correct = 0;
  /// The number of ranks that failed before they had counted all of their samples.
  std::int64_t failures = 0;

  /// Adds the mean loss of a batch with that many rows.
  void add_loss(double mean_loss, std::int64_t rows);

  /// Counts the right predictions if `target` holds class numbers [N, ...] for logits `output` [N,
  /// C, ...]. Other targets are not counted.
  void add_predictions(const at::Tensor& output, const at::Tensor& target);

  /// Returns the means; the loss is 0 if there are no samples.
  Evaluation evaluation() const;
};

/// Returns the sum of the accumulators of all ranks, the same on all. Throws UsageError for an
/// empty group. Collective and blocking.
MetricAccumulator all_reduce(const MetricAccumulator& accumulator, const comm::Group& group);

}  // namespace trireme

// SPDX-License-Identifier: Apache-2.0
// What an evaluation counts, and how ranks add their counts up: sums and numbers of samples, never
// means of means, so that parts of different size weigh what they should.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme {

/// The result of an evaluation, over all ranks.
struct Evaluation {
  /// Mean over the samples; a batch's loss counts once for each of its rows.
  double loss = 0;
  /// Share of class numbers that the largest logit hits, in [0, 1]; nothing where targets are no
  /// class numbers. Soft labels look like any other numbers, so they have none here; TopK and
  /// ConfusionMatrix take their most likely class.
  std::optional<double> accuracy;
  std::int64_t samples = 0;
};

/// Sums of one rank. Counts are integers and exact; losses are summed in double.
struct MetricAccumulator {
  double loss_sum = 0;
  std::int64_t samples = 0;
  /// Class numbers that were compared with a prediction, and how many were right.
  std::int64_t labels = 0;
  std::int64_t correct = 0;
  /// Ranks that could not count all of theirs.
  std::int64_t failures = 0;

  void add_loss(double mean_loss, std::int64_t rows);

  /// Counts right predictions where `target` holds class numbers [N, ...] for logits `output` [N,
  /// C, ...]; other targets are not counted.
  void add_predictions(const at::Tensor& output, const at::Tensor& target);

  /// Returns the means; loss 0 where there are no samples.
  Evaluation evaluation() const;
};

/// Returns the sum of every rank's accumulator, the same on all. Throws UsageError for an empty
/// group. Collective, blocking.
MetricAccumulator all_reduce(const MetricAccumulator& accumulator, const comm::Group& group);

}  // namespace trireme

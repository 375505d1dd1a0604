// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/metric_accumulator.h>

#include "tests/ranks/thread_ranks.h"
#include <trireme/base/error.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace trireme {
namespace {

TEST(MetricAccumulator, ABatchWeighsAsMuchAsItHasRows) {
  MetricAccumulator accumulator;
  accumulator.add_loss(1.0, 30);
  accumulator.add_loss(4.0, 10);
  EXPECT_DOUBLE_EQ(accumulator.evaluation().loss, 1.75);
  EXPECT_EQ(accumulator.evaluation().samples, 40);
}

TEST(MetricAccumulator, CountsRightPredictionsOfClassNumbers) {
  MetricAccumulator accumulator;
  accumulator.add_predictions(torch::tensor({{0.1, 0.9}, {0.8, 0.2}, {0.3, 0.7}}),
                              torch::tensor({1, 0, 0}));
  EXPECT_EQ(accumulator.labels, 3);
  EXPECT_EQ(accumulator.correct, 2);
}

TEST(MetricAccumulator, HasNoAccuracyWhereTargetsAreNoClassNumbers) {
  MetricAccumulator accumulator;
  accumulator.add_predictions(torch::zeros({3, 1}), torch::zeros({3, 1}));
  // A language model's logits, [sequences, tokens, vocabulary].
  accumulator.add_predictions(torch::zeros({2, 5, 7}), torch::zeros({2, 5}, torch::kLong));
  accumulator.add_loss(0.5, 3);
  EXPECT_FALSE(accumulator.evaluation().accuracy.has_value());
  EXPECT_EQ(MetricAccumulator().evaluation().loss, 0);
}

TEST(MetricAccumulator, AnEmptyGroupIsAnError) {
  EXPECT_THROW(all_reduce(MetricAccumulator(), comm::Group{}), UsageError);
}

TEST(MetricAccumulator, AddsUpOverRanksOfDifferentSizeAndOneWithoutSamples) {
  testing::run_ranks(3, [](const comm::Group& group) {
    MetricAccumulator accumulator;
    if (group.rank() == 0)
      accumulator = {.loss_sum = 30, .samples = 30, .labels = 30, .correct = 30};
    if (group.rank() == 1)
      accumulator = {.loss_sum = 40, .samples = 10, .labels = 10, .correct = 0};
    const Evaluation result = all_reduce(accumulator, group).evaluation();
    EXPECT_DOUBLE_EQ(result.loss, 1.75);
    EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.75);
    EXPECT_EQ(result.samples, 40);
  });
}

}  // namespace
}  // namespace trireme

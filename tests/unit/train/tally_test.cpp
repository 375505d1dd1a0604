// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/tally.h>

#include "tests/ranks/thread_ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace trireme {
namespace {

TEST(Tally, ABatchWeighsAsMuchAsItHasRows) {
  Tally tally;
  tally.add_loss(1.0, 30);
  tally.add_loss(4.0, 10);
  EXPECT_DOUBLE_EQ(tally.evaluation().loss, 1.75);
  EXPECT_EQ(tally.evaluation().samples, 40);
}

TEST(Tally, CountsRightPredictionsOfClassNumbers) {
  Tally tally;
  tally.add_predictions(torch::tensor({{0.1, 0.9}, {0.8, 0.2}, {0.3, 0.7}}),
                        torch::tensor({1, 0, 0}));
  EXPECT_EQ(tally.labels, 3);
  EXPECT_EQ(tally.correct, 2);
}

TEST(Tally, HasNoAccuracyWhereTargetsAreNoClassNumbers) {
  Tally tally;
  tally.add_predictions(torch::zeros({3, 1}), torch::zeros({3, 1}));
  // A language model's logits, [sequences, tokens, vocabulary].
  tally.add_predictions(torch::zeros({2, 5, 7}), torch::zeros({2, 5}, torch::kLong));
  tally.add_loss(0.5, 3);
  EXPECT_FALSE(tally.evaluation().accuracy.has_value());
  EXPECT_EQ(Tally().evaluation().loss, 0);
}

TEST(Tally, AddsUpOverRanksOfDifferentSizeAndOneWithoutSamples) {
  testing::run_ranks(3, [](const comm::Group& group) {
    Tally tally;
    if (group.rank() == 0) tally = {.loss_sum = 30, .samples = 30, .labels = 30, .correct = 30};
    if (group.rank() == 1) tally = {.loss_sum = 40, .samples = 10, .labels = 10, .correct = 0};
    const Evaluation result = all_reduce(tally, group).evaluation();
    EXPECT_DOUBLE_EQ(result.loss, 1.75);
    EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.75);
    EXPECT_EQ(result.samples, 40);
  });
}

}  // namespace
}  // namespace trireme

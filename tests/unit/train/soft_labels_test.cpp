// SPDX-License-Identifier: Apache-2.0
// Labels that are a probability for each class, as mixup makes them.
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using testing::momentum;
using testing::points;
using testing::same_parameters;
using testing::small_network;

data::DataLoader mixed_points() {
  data::DataLoader data = points(48);
  data.shuffle(1).batch(8).map_batch(data::mixup(3, 0.4, {.image = "features", .label = "label"}));
  return data;
}

TEST(SoftLabels, OfMixupTrainBitByBitAsALoopOverLibTorchDoes) {
  const data::DataLoader data = mixed_points();
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy{.label_smoothing = 0.1}, optimizer);
  model.train(2, data);

  namespace functional = torch::nn::functional;
  auto expected = small_network();
  auto plain = momentum(*expected);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto batches = data.open(epoch);
    while (const auto batch = batches->next()) {
      ASSERT_EQ((*batch)["label"].sizes(), torch::IntArrayRef({8, 3}));
      plain.zero_grad();
      functional::cross_entropy(expected->forward((*batch)["features"]), (*batch)["label"],
                                functional::CrossEntropyFuncOptions().label_smoothing(0.1))
          .backward();
      plain.step();
    }
  }
  EXPECT_TRUE(same_parameters(*network, *expected));
}

TEST(SoftLabels, HaveALossAndNoAccuracyAndCountAsTheirMostLikelyClassInMetrics) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  ConfusionMatrix matrix(3);
  TopK top(2);
  Model model(network, CrossEntropy(), optimizer, {.metrics = {matrix, top}});
  const data::DataLoader data = mixed_points();
  const Evaluation result = model.evaluate(data);
  EXPECT_FALSE(result.accuracy.has_value());
  EXPECT_EQ(result.samples, 48);

  ConfusionMatrix expected_matrix(3);
  TopK expected_top(2);
  double loss = 0;
  network->eval();
  const auto batches = data.open(0);
  while (const auto batch = batches->next()) {
    const at::Tensor output = network->forward((*batch)["features"]);
    loss += 8 * CrossEntropy()(output, (*batch)["label"]).item<double>();
    const at::Tensor classes = (*batch)["label"].argmax(1);
    expected_matrix.add(output, classes);
    expected_top.add(output, classes);
  }
  EXPECT_DOUBLE_EQ(result.loss, loss / 48);
  EXPECT_TRUE(matrix.counts().equal(expected_matrix.counts()));
  EXPECT_EQ(top.value(), expected_top.value());
}

TEST(SoftLabels, HaveNoPerplexity) {
  EXPECT_THAT(message_of<UsageError>(
                  [] { Perplexity().add(torch::zeros({2, 3}), torch::full({2, 3}, 1.0 / 3)); }),
              HasSubstr("got soft labels [2, 3] of dtype float"));
}

}  // namespace
}  // namespace trireme

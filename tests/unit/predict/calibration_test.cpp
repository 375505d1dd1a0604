// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/link_samples.h>
#include <trireme/predict/calibration/operator_samples.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace trireme::predict {
namespace {

TEST(OperatorSamples, HaveTheWorkOfTheDryRunAndATime) {
  constexpr std::int64_t kRowsOfBatch = 8;
  constexpr std::int64_t kFeaturesOfLayer = 32;
  torch::nn::Linear first(kFeaturesOfLayer, kFeaturesOfLayer);
  torch::nn::Linear second(kFeaturesOfLayer, kFeaturesOfLayer);
  const torch::nn::Sequential layers(first, torch::nn::GELU(), second);
  const torch::Tensor input = torch::randn({kRowsOfBatch, kFeaturesOfLayer});
  int runs = 0;
  const NetworkSamples samples = sample_network(
      layers,
      [&] {
        ++runs;
        return second(torch::gelu(first(input))).sum();
      },
      /*repetitions=*/3, comm::Group::self());
  EXPECT_EQ(runs, 1 + 5);  // the dry run, two to warm up, and three
  EXPECT_GE(samples.between_seconds, 0);
  const auto count = [&](const std::string& name) {
    return std::ranges::count(samples.operators, name, &OperatorSample::name);
  };
  EXPECT_EQ(count("aten::addmm"), 2);
  EXPECT_EQ(count("aten::mm"), 3);
  EXPECT_EQ(count("aten::gelu"), 1);
  EXPECT_EQ(count("aten::gelu_backward"), 1);
  for (const OperatorSample& sample : samples.operators) {
    EXPECT_GT(sample.seconds, 0) << sample.name;
    EXPECT_EQ(sample.dtype, "float32") << sample.name;
    const bool is_product = sample.name == "aten::addmm" || sample.name == "aten::mm";
    EXPECT_EQ(sample.is_in_flops, is_product) << sample.name;
    if (is_product)
      EXPECT_EQ(sample.size, 2.0 * kRowsOfBatch * kFeaturesOfLayer * kFeaturesOfLayer);
    if (sample.name == "aten::gelu")
      EXPECT_EQ(sample.size, 2.0 * 4 * kRowsOfBatch * kFeaturesOfLayer);
  }
  EXPECT_FALSE(first->weight.grad().defined());
}

TEST(LinkSamples, OfOneRankAreNone) {
  EXPECT_TRUE(sample_links(comm::Group::self()).empty());
  EXPECT_EQ(sample_interference(comm::Group::self()), 0);
}

}  // namespace
}  // namespace trireme::predict

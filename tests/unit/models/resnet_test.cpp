// SPDX-License-Identifier: Apache-2.0
// Values against Python are held by tests/parity/checkpoint; here: sizes, names, shapes, initial
// values, learning.
#include <models/resnet.h>

#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <tests/unit/models/count_parameters.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace models {
namespace {

TEST(ResNet, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(count_parameters(*resnet18()), 11'689'512);
  EXPECT_EQ(count_parameters(*resnet50()), 25'557'032);
  // With 1x1 convolutions on shortcuts; the paper's option A, which has none, would be 269,722.
  EXPECT_EQ(count_parameters(*resnet20()), 272'474);
  EXPECT_EQ(count_parameters(*resnet20(10, 1)), 272'474 - 2 * 16 * 9);
}

ResNetOptions bottlenecks(std::vector<std::int64_t> blocks, std::int64_t widening) {
  return {
      .block = Block::kBottleneck, .blocks = std::move(blocks), .bottleneck_widening = widening};
}

TEST(ResNet, HasThePublishedNumberOfParametersIfItIsDeepOrWide) {
  const auto count = [](const auto& make) {
    return count_parameters(*trireme::deferred(make));  // without memory
  };
  EXPECT_EQ(count([] { return wide_resnet50(); }), 68'883'240);
  EXPECT_EQ(count([] { return ResNet(bottlenecks({3, 4, 23, 3}, 2)); }), 126'886'696);  // WRN-101-2
  EXPECT_EQ(count([] { return ResNet(bottlenecks({3, 4, 23, 3}, 1)); }), 44'549'160);
  EXPECT_EQ(count([] { return ResNet(bottlenecks({3, 8, 36, 3}, 1)); }), 60'192'808);
}

TEST(ResNet, WidensTheInsideOfBottlenecksOnly) {
  const auto shape = [](const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                        const char* name) { return parameters[name].sizes().vec(); };
  const auto parameters = ResNet(bottlenecks({1, 1}, 3))->named_parameters();
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(shape(parameters, "layer1.0.conv1.weight"), (Sizes{192, 64, 1, 1}));
  EXPECT_EQ(shape(parameters, "layer1.0.conv2.weight"), (Sizes{192, 192, 3, 3}));
  EXPECT_EQ(shape(parameters, "layer1.0.conv3.weight"), (Sizes{256, 192, 1, 1}));
  EXPECT_EQ(shape(parameters, "layer2.0.conv2.weight"), (Sizes{384, 384, 3, 3}));
  EXPECT_EQ(shape(parameters, "layer2.0.downsample.0.weight"), (Sizes{512, 256, 1, 1}));
}

TEST(ResNet, RefusesAWideningThatDoesNotFit) {
  const auto refusal = [](const ResNetOptions& options) {
    return trireme::test::message_of<c10::Error>([&] { const ResNet net(options); });
  };
  EXPECT_THAT(refusal(bottlenecks({1}, 0)),
              testing::HasSubstr("bottleneck_widening is 0, expected 1 or more"));
  EXPECT_THAT(refusal({.bottleneck_widening = 2}),
              testing::HasSubstr("bottleneck_widening is 2, expected 1 for basic blocks"));
}

TEST(ResNet, NamesItsParametersAsTorchvisionDoes) {
  const auto parameters = resnet50()->named_parameters();
  EXPECT_EQ(parameters.size(), 161U);
  for (const char* name :
       {"conv1.weight", "bn1.bias", "layer1.0.downsample.0.weight", "layer1.0.downsample.1.bias",
        "layer3.5.conv3.weight", "layer4.2.bn3.weight", "fc.weight", "fc.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_TRUE(resnet18()->named_buffers().contains("layer2.0.downsample.1.running_mean"));
  EXPECT_FALSE(resnet18()->named_parameters().contains("layer1.0.downsample.0.weight"));
  EXPECT_FALSE(resnet20()->named_parameters().contains("layer4.0.conv1.weight"));
}

TEST(ResNet, MapsImagesToLogits) {
  const torch::NoGradGuard no_grad;
  struct Case {
    ResNet net;
    std::vector<std::int64_t> images;
    std::vector<std::int64_t> logits;
  };
  const std::vector<Case> cases = {{resnet20(10, 1), {2, 1, 28, 28}, {2, 10}},
                                   {resnet20(7, 3), {1, 3, 32, 32}, {1, 7}},
                                   {resnet18(10, 1, Stem::kSmall), {2, 1, 28, 28}, {2, 10}},
                                   {resnet50(10, 3, Stem::kSmall), {1, 3, 32, 32}, {1, 10}},
                                   {resnet18(), {1, 3, 64, 64}, {1, 1000}}};
  for (auto [net, images, logits] : cases) {
    net->eval();
    EXPECT_EQ(net(torch::randn(images)).sizes(), logits);
  }
}

TEST(ResNet, StartsFromKaimingsDistributionAndIdentityNorms) {
  torch::manual_seed(1);
  const auto parameters = resnet18()->named_parameters();
  const auto& weight = parameters["layer4.1.conv2.weight"];  // fan out 512 * 9
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (512 * 9)), 1e-4);
  EXPECT_NEAR(weight.mean().item<double>(), 0, 1e-4);
  EXPECT_TRUE(torch::equal(parameters["bn1.weight"], torch::ones({64})));
  EXPECT_TRUE(torch::equal(parameters["bn1.bias"], torch::zeros({64})));
}

TEST(ResNet, LearnsABatchByHeart) {
  torch::manual_seed(3);
  auto net = resnet20(10, 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto images = torch::randn({16, 1, 12, 12});
  const auto labels = torch::arange(16).remainder(10);
  double loss_value = 0;
  for (int step = 0; step < 15; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(net(images), labels);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.3);
}

}  // namespace
}  // namespace models

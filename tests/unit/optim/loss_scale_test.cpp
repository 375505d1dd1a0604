// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/loss_scale.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

TEST(LossScale, GivesTheGradientsOfTheUnscaledLoss) {
  torch::Tensor weight = torch::tensor({2.0F, 3.0F}).set_requires_grad(true);
  torch::optim::SGD optimizer({weight}, 0.1);
  LossScale scale;
  scale.scale(weight.square().sum()).backward();
  EXPECT_EQ(weight.grad()[0].item<float>(), 4 * 65536);
  EXPECT_TRUE(scale.unscale(optimizer));
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({4.0F, 6.0F})));
}

TEST(LossScale, FallsAfterAnOverflowAndGrowsAfterManyGoodSteps) {
  torch::Tensor weight = torch::ones({1}).set_requires_grad(true);
  torch::optim::SGD optimizer({weight}, 0.1);
  LossScale scale({.initial = 8, .growth_interval = 3, .minimum = 4});
  const auto step = [&](float gradient) {
    weight.mutable_grad() = torch::full({1}, gradient);
    return scale.unscale(optimizer);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(step(infinity));
  EXPECT_EQ(weight.grad().item<float>(), infinity);
  EXPECT_EQ(scale.value(), 4);
  EXPECT_FALSE(step(-infinity));
  EXPECT_EQ(scale.value(), 4);  // the least
  EXPECT_TRUE(step(1) && step(1));
  EXPECT_EQ(scale.value(), 4);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scale.value(), 8);
  EXPECT_TRUE(step(1) && step(1));
  EXPECT_FALSE(step(infinity));  // the count begins anew
  EXPECT_TRUE(step(1) && step(1));
  EXPECT_EQ(scale.value(), 4);
}

TEST(LossScale, GoesOnFromItsState) {
  torch::Tensor weight = torch::ones({1}).set_requires_grad(true);
  torch::optim::SGD optimizer({weight}, 0.1);
  LossScale scale({.initial = 8, .growth_interval = 3});
  weight.mutable_grad() = torch::ones({1});
  EXPECT_TRUE(scale.unscale(optimizer) && scale.unscale(optimizer));
  LossScale other({.initial = 2, .growth_interval = 3});
  other.restore(scale.state());
  EXPECT_TRUE(other.unscale(optimizer));
  EXPECT_EQ(other.value(), 16);
  EXPECT_EQ(other.state().good_steps, 0);
  EXPECT_THROW(other.restore({.value = 0}), UsageError);
  EXPECT_THROW(other.restore({.value = 1, .good_steps = -1}), UsageError);
}

TEST(LossScale, RefusesImpossibleValues) {
  EXPECT_THROW(LossScale({.initial = 0}), UsageError);
  EXPECT_THROW(LossScale({.initial = INFINITY}), UsageError);
  EXPECT_THROW(LossScale({.growth = INFINITY}), UsageError);
  EXPECT_THROW(LossScale({.growth = 0.5}), UsageError);
  EXPECT_THROW(LossScale({.growth_interval = 0}), UsageError);
  EXPECT_THROW(LossScale({.backoff = 2}), UsageError);
}

}  // namespace
}  // namespace trireme

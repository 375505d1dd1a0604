// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace trireme {
namespace {

// Guides promise this formula for torch::optim::SGD; other frameworks put the learning rate into
// the velocity.
TEST(Momentum, IsVelocityTimesMomentumPlusGradientThenParameterMinusRateTimesVelocityBitByBit) {
  torch::manual_seed(3);
  constexpr double kRate = 0.01;
  constexpr double kMomentum = 0.6;
  auto parameter = torch::randn({257}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(kRate).momentum(kMomentum));
  auto expected = parameter.detach().clone();
  auto velocity = torch::zeros_like(expected);
  for (int step = 0; step < 20; ++step) {
    const auto gradient = torch::randn({257});
    parameter.mutable_grad() = gradient.clone();
    optimizer.step();
    velocity = velocity.mul(kMomentum).add(gradient);
    expected.add_(velocity, -kRate);
    ASSERT_TRUE(parameter.equal(expected)) << "step " << step;
  }
}

}  // namespace
}  // namespace trireme

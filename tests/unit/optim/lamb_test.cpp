// SPDX-License-Identifier: Apache-2.0
// tests/parity/optim compares with a computation in Python.
#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <limits>

namespace trireme {
namespace {

using test::message_of;
using testing::HasSubstr;

at::Tensor with_gradient(const at::Tensor& values, const at::Tensor& gradient) {
  at::Tensor parameter = values.clone().requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

// The first update of every element is about the sign of its gradient, so its norm is known.
TEST(Lamb, StepsByTheNormOfTheParameter) {
  const at::Tensor values = torch::tensor({3.0, 4.0, 0.0, 0.0}, torch::kDouble);
  const at::Tensor gradient = torch::tensor({1.0, -1.0, 2.0, 0.5}, torch::kDouble);
  const at::Tensor parameter = with_gradient(values, gradient);
  lamb({parameter}, {.learning_rate = 0.1, .epsilon = 1e-12, .weight_decay = 0})->step();
  EXPECT_TRUE(torch::allclose(parameter, values - 0.1 * 5.0 / 2.0 * gradient.sign(), 1e-9));
  // A norm above the largest one counts as that.
  const at::Tensor capped = with_gradient(values, gradient);
  lamb({capped}, {.learning_rate = 0.1, .epsilon = 1e-12, .weight_decay = 0, .largest_norm = 2})
      ->step();
  EXPECT_TRUE(torch::allclose(capped, values - 0.1 * 2.0 / 2.0 * gradient.sign(), 1e-9));
}

TEST(Lamb, StepsAsAdamWhereItDoesNotAdaptAndWhereNormsAre0) {
  const at::Tensor gradient = torch::tensor({1.0, -1.0}, torch::kDouble);
  const at::Tensor bias = with_gradient(torch::tensor({3.0, 4.0}, torch::kDouble), gradient);
  const at::Tensor zero = with_gradient(torch::zeros({2}, torch::kDouble), gradient);
  const LambOptions options{.learning_rate = 0.1, .epsilon = 1e-12, .weight_decay = 0};
  lamb({{.parameters = {bias}, .options = options, .adapts = false}})->step();
  lamb({zero}, options)->step();
  EXPECT_TRUE(torch::allclose(bias, torch::tensor({2.9, 4.1}, torch::kDouble), 1e-9));
  EXPECT_TRUE(torch::allclose(zero, torch::tensor({-0.1, 0.1}, torch::kDouble), 1e-9));
  // Nothing to do: the update is 0.
  const at::Tensor still = with_gradient(torch::ones({2}), torch::zeros({2}));
  lamb({still}, options)->step();
  EXPECT_TRUE(still.equal(torch::ones({2})));
}

TEST(Lamb, LeavesParametersWithoutAGradient) {
  const at::Tensor idle = torch::ones({2}).requires_grad_();
  lamb({idle})->step();
  EXPECT_TRUE(idle.equal(torch::ones({2})));
}

TEST(Lamb, HasALearningRateThatCanBeSet) {
  const at::Tensor parameter = with_gradient(torch::ones({2}), torch::ones({2}));
  const auto optimizer = lamb({parameter}, {.learning_rate = 0.25});
  auto& options = optimizer->param_groups()[0].options();
  EXPECT_EQ(options.get_lr(), 0.25);
  options.set_lr(0);
  optimizer->step();
  EXPECT_TRUE(parameter.equal(torch::ones({2})));
}

TEST(Lamb, TrainsANetwork) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const auto inputs = torch::randn({64, 4});
  const auto targets = inputs.prod(1, true);
  const auto optimizer = lamb(net->parameters(), {.learning_rate = 0.02});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    const at::Tensor loss = optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor mean = torch::mse_loss(net->forward(inputs), targets);
      mean.backward();
      return mean;
    });
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.3 * first);
}

TEST(Lamb, RefusesOptionsThatCannotBe) {
  const auto refused = [](const LambOptions& options) {
    return message_of<UsageError>([&] { lamb({torch::ones({1})}, options); });
  };
  EXPECT_THAT(refused({.learning_rate = -1}), HasSubstr("LambOptions::learning_rate is -1"));
  EXPECT_THAT(refused({.learning_rate = std::numeric_limits<double>::infinity()}),
              HasSubstr("learning_rate is inf"));
  EXPECT_THAT(refused({.beta1 = 1}), HasSubstr("beta1 is 1"));
  EXPECT_THAT(refused({.beta2 = -0.1}), HasSubstr("beta2 is -0.1"));
  EXPECT_THAT(refused({.epsilon = 0}), HasSubstr("epsilon is 0"));
  EXPECT_THAT(refused({.weight_decay = -1}), HasSubstr("weight_decay is -1"));
  EXPECT_THAT(refused({.largest_norm = 0}), HasSubstr("largest_norm is 0"));
  EXPECT_THAT(message_of<UsageError>([] { lamb(std::vector<at::Tensor>{}); }),
              HasSubstr("lamb() was given no parameters"));
  const at::Tensor sparse = with_gradient(
      torch::ones({2}),
      torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1}), {2}));
  EXPECT_THAT(message_of<UsageError>([&] { lamb({sparse})->step(); }),
              HasSubstr("sparse gradient"));
}

}  // namespace
}  // namespace trireme

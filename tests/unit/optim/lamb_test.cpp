// SPDX-License-Identifier: Apache-2.0
// tests/parity/optim compares with a computation in Python.
#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>

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

// Steps of a group that was added used to read options of no group.
TEST(Lamb, StepsGroupsThatAreAddedLater) {
  const at::Tensor values = torch::tensor({3.0, 4.0}, torch::kDouble);
  const at::Tensor gradient = torch::tensor({1.0, -1.0}, torch::kDouble);
  const auto fresh = [&] { return with_gradient(values, gradient); };
  const LambOptions options{
      .learning_rate = 0.1, .epsilon = 1e-12, .weight_decay = 0, .largest_norm = 2};
  const at::Tensor first = fresh();
  const at::Tensor alike = fresh();
  const at::Tensor faster = fresh();
  const at::Tensor plain = fresh();
  const auto optimizer = lamb({first}, options);
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({alike}));
  optimizer->add_param_group(torch::optim::OptimizerParamGroup(
      {faster}, std::make_unique<torch::optim::AdamWOptions>(0.2)));
  add_lamb_group(*optimizer, {.parameters = {plain}, .options = options, .adapts = false});
  ASSERT_EQ(optimizer->param_groups().size(), 4);
  optimizer->step();
  // By the norm, which counts as 2, over that of two signs.
  const auto stepped_by = [&](double length) { return values - length * gradient; };
  const double adapted = 2 / std::sqrt(2.0);
  EXPECT_TRUE(torch::allclose(first, stepped_by(0.1 * adapted), 1e-9));
  EXPECT_TRUE(alike.equal(first));
  // AdamWOptions has epsilon 1e-8 and weight decay 0.01 as its defaults, which are inherited.
  EXPECT_TRUE(torch::allclose(faster, stepped_by(0.2 * adapted), 1e-9));
  EXPECT_TRUE(torch::allclose(plain, stepped_by(0.1), 1e-9));
  EXPECT_EQ(optimizer->param_groups()[3].options().get_lr(), 0.1);
}

TEST(Lamb, RefusesGroupsThatItCannotStep) {
  const at::Tensor parameter = torch::ones({1}).requires_grad_();
  const auto optimizer = lamb({torch::ones({1})});
  EXPECT_THAT(message_of<UsageError>([&] { add_lamb_group(*optimizer, {}); }),
              HasSubstr("add_lamb_group was given no parameters"));
  EXPECT_THAT(message_of<UsageError>([&] {
                add_lamb_group(*optimizer, {.parameters = {parameter}, .options = {.beta1 = 2}});
              }),
              HasSubstr("beta1 is 2"));
  torch::optim::SGD other({parameter}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { add_lamb_group(other, {.parameters = {parameter}}); }),
              HasSubstr("torch::optim::SGD"));
  EXPECT_EQ(optimizer->param_groups().size(), 1);
  auto& group = optimizer->param_groups()[0];
  group.set_options(
      std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions().amsgrad(true)));
  EXPECT_THAT(message_of<UsageError>([&] { optimizer->step(); }),
              HasSubstr("group 0 of LAMB has options with amsgrad"));
  group.set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { optimizer->step(); }),
              HasSubstr("group 0 of LAMB has options of type torch::optim::SGDOptions"));
}

TEST(Lamb, IsSavedAndLoadedByLibTorch) {
  const at::Tensor gradient = torch::tensor({1.0F, 2.0F, -3.0F});
  const at::Tensor expected = with_gradient(torch::full({3}, 2.0F), gradient);
  const at::Tensor resumed = with_gradient(torch::full({3}, 2.0F), gradient);
  const auto whole = lamb({expected}, {.learning_rate = 0.5});
  const auto before = lamb({resumed}, {.learning_rate = 0.5});
  whole->step();
  before->step();
  std::stringstream file;
  torch::save(*before, file);
  const auto after = lamb({resumed}, {.learning_rate = 0.1});
  torch::load(*after, file);
  whole->step();
  after->step();
  EXPECT_TRUE(resumed.equal(expected));
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

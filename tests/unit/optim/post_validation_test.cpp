// SPDX-License-Identifier: Apache-2.0
// In one process, which knows its gradients before it steps. Over ranks:
// tests/ranks/post_validation_test.cpp.
#include <trireme/optim/post_validation.h>

#include <trireme/base/error.h>
#include <trireme/optim/loss_scale.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

struct Weight {
  void give(double gradient) { tensor.mutable_grad() = torch::full({2}, gradient, torch::kDouble); }
  double value() const { return tensor[0].item<double>(); }

  torch::Tensor tensor = torch::zeros({2}, torch::kDouble).set_requires_grad(true);
  torch::optim::SGD optimizer{{tensor}, 1};
};

TEST(PostValidation, StepsAtOnceWhereNobodyHasAnything) {
  Weight weight;
  PostValidation validation(weight.optimizer, {.max_norm = 1.0, .skip_not_finite = true});
  EXPECT_FALSE(validation.validate().has_value());
  weight.give(3);
  validation.step();
  EXPECT_NEAR(weight.value(), -1 / std::sqrt(2), 1e-6);  // clipped already
  const auto outcome = validation.validate();
  EXPECT_EQ(outcome->norm, std::sqrt(18));
  EXPECT_FALSE(outcome->is_skipped || outcome->is_taken_back);
  const double before = weight.value();
  weight.give(std::numeric_limits<double>::infinity());
  validation.step();
  EXPECT_TRUE(validation.validate()->is_skipped);
  EXPECT_EQ(weight.value(), before);
  EXPECT_EQ(validation.kept_bytes(), 0);
}

TEST(PostValidation, AdjustsTheLossScaleWhenItValidates) {
  Weight weight;
  LossScale scale({.initial = 8, .growth_interval = 1});
  PostValidation validation(weight.optimizer, {.loss_scale = &scale});
  weight.give(16);
  validation.step();
  EXPECT_EQ(weight.value(), -2);
  EXPECT_EQ(scale.value(), 8);
  validation.validate();
  EXPECT_EQ(scale.value(), 16);
  weight.give(std::numeric_limits<double>::quiet_NaN());
  validation.step();
  EXPECT_TRUE(validation.validate()->is_skipped);
  EXPECT_EQ(scale.value(), 8);
  EXPECT_EQ(weight.value(), -2);
}

TEST(PostValidation, RefusesWhatItCannotDo) {
  Weight weight;
  EXPECT_THROW(PostValidation(weight.optimizer, {}), UsageError);
  EXPECT_THROW(PostValidation(weight.optimizer, {.max_norm = 0.0}), UsageError);
  torch::optim::LBFGS optimizer({weight.tensor});
  EXPECT_THROW(PostValidation(optimizer, {.max_norm = 1.0}), UsageError);
  PostValidation validation(weight.optimizer, {.max_norm = 1.0});
  weight.give(1);
  validation.step();
  EXPECT_THROW(validation.step(), UsageError);
}

}  // namespace
}  // namespace trireme
